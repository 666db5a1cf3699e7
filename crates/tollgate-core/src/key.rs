//! How buckets are named.

use std::{
    fmt::{self, Write},
    hash::{BuildHasher, Hash, Hasher},
    ops::Range,
    sync::{Arc, LazyLock},
};

use foldhash::quality::RandomState;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::{ANONYMOUS, LimitName, Tenant};

/// Longer ids are replaced by their SHA-256; so a key's length is bounded.
const MAX_ID: usize = 128;

/// Words before an id, or in place of one, that are taken: no bucket of a tenant can be under them.
const TAKEN: [&str; 4] = [GLOBAL, DEPENDENCY, REPLICAS, ANONYMOUS];

const GLOBAL: &str = "global";
const DEPENDENCY: &str = "dependency";
const REPLICAS: &str = "replicas";

/// The name of one bucket: `<prefix>:{<scope>:<id>}:<limit>[:<member>]`.
///
/// What stands in braces is the hash tag: on a Redis Cluster, all keys of one tenant share a slot.
#[derive(Clone)]
pub struct BucketKey(Arc<Named>);

struct Named {
    text: Box<str>,
    tag: Range<usize>,
    /// Each stage of a limiter looks for the bucket, and mostly finds the key that it was given before: so hashes
    /// are made once, and equal keys are mostly one and the same.
    hash: u64,
    tag_hash: u64,
}

/// Random, so that nobody can make up ids that collide.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

impl BucketKey {
    fn new(text: String, tag: Range<usize>) -> Self {
        Self(Arc::new(Named {
            hash: HASHER.hash_one(&text),
            tag_hash: HASHER.hash_one(&text[tag.clone()]),
            text: text.into(),
            tag,
        }))
    }

    /// The whole key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// The hash tag: what stands between the braces.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.0.text[self.0.tag.clone()]
    }

    /// The same for all keys with this hash tag, in this process.
    pub(crate) fn tag_hash(&self) -> u64 {
        self.0.tag_hash
    }

    /// The same bucket's part number `index`, under a hash tag of its own: `tg:{tenant:42/1}:default`. No id
    /// can look like that, since a `/` in one is written `%2F`.
    #[must_use]
    pub fn shard(&self, index: u8) -> Self {
        let Named { text, tag, .. } = &*self.0;
        let (start, rest) = text.split_at(tag.end);
        let sharded = format!("{start}/{index}{rest}");
        let tag_end = tag.end + sharded.len() - text.len();
        Self::new(sharded, tag.start..tag_end)
    }
}

// === impl BucketKey ===

impl PartialEq for BucketKey {
    fn eq(&self, other: &Self) -> bool {
        // The text tells where the tag is.
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.hash == other.0.hash && self.0.text == other.0.text)
    }
}

impl Eq for BucketKey {}

impl Hash for BucketKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Debug for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.text.fmt(f)
    }
}

impl fmt::Display for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

/// Names buckets under one prefix, so that no two tenants share a key and no id can break a hash tag.
///
/// In ids and members only `A–Z a–z 0–9 . _ ~ -` stand as they are; every other byte is `%XX`; one longer
/// than 128 bytes after that becomes `#` and its SHA-256 in hex. With a [secret](Self::with_secret), every
/// id and member becomes `#` and its HMAC-SHA-256 in hex.
///
/// ```
/// use tollgate_core::{KeySpace, LimitName, Tenant};
///
/// let keys = KeySpace::default();
/// let tenant = Tenant::new("a}{b", "pro")?;
/// assert_eq!(keys.bucket(&tenant, &LimitName::default()).as_str(), "tg:{tenant:a%7D%7Bb}:default");
/// # Ok::<(), tollgate_core::EmptyId>(())
/// ```
#[derive(Clone)]
pub struct KeySpace {
    prefix: Arc<str>,
    /// The word before the ids of tenants.
    tag_scope: Arc<str>,
    secret: Option<Hmac<Sha256>>,
}

impl KeySpace {
    /// Keys that start with `prefix`.
    ///
    /// # Errors
    ///
    /// If the prefix is empty or has a brace, which would move the hash tag.
    pub fn new(prefix: &str) -> Result<Self, InvalidPrefix> {
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(InvalidPrefix(prefix.to_owned()));
        }
        Ok(Self {
            prefix: prefix.into(),
            ..Self::default()
        })
    }

    /// Writes this word before the ids of tenants, instead of `tenant`, so that on a cluster their buckets share
    /// slots with other keys that a program has of them: `tg:{user:42}:default` with `cart:{user:42}`. Another
    /// word gives other keys, and so full buckets.
    ///
    /// # Errors
    ///
    /// If the word does not match `[a-z][a-z0-9_-]*`, or is one of those that stand for something else: `global`,
    /// `dependency`, `replicas` and `anonymous`.
    pub fn with_tag_scope(mut self, word: &str) -> Result<Self, InvalidTagScope> {
        let is_word = word.starts_with(|first: char| first.is_ascii_lowercase())
            && word
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'));
        if !is_word || TAKEN.contains(&word) {
            return Err(InvalidTagScope(word.to_owned()));
        }
        self.tag_scope = word.into();
        Ok(self)
    }

    /// Hashes every id and member with `secret`, for tenants whose id is itself a secret or personal.
    /// Another secret gives other keys, and so full buckets.
    #[must_use]
    pub fn with_secret(mut self, secret: &[u8]) -> Self {
        self.secret = Some(Hmac::new_from_slice(secret).expect("HMAC takes a key of any length"));
        self
    }

    /// The bucket of `limit` for `tenant`.
    #[must_use]
    pub fn bucket(&self, tenant: &Tenant, limit: &LimitName) -> BucketKey {
        self.build(self.scope(tenant), Some(tenant.id()), limit, None)
    }

    /// The bucket of `limit` for one `member` of `tenant`, such as a user.
    #[must_use]
    pub fn member_bucket(&self, tenant: &Tenant, limit: &LimitName, member: &str) -> BucketKey {
        self.build(self.scope(tenant), Some(tenant.id()), limit, Some(member))
    }

    /// The bucket of `limit` for everybody: `<prefix>:{global}:<limit>`.
    #[must_use]
    pub fn global_bucket(&self, limit: &LimitName) -> BucketKey {
        self.build(GLOBAL, None, limit, None)
    }

    /// The bucket of `limit` for everybody who uses the downstream service `dependency`:
    /// `<prefix>:{dependency:<dependency>}:<limit>`.
    #[must_use]
    pub fn dependency_bucket(&self, dependency: &str, limit: &LimitName) -> BucketKey {
        self.build(DEPENDENCY, Some(dependency), limit, None)
    }

    /// The key under which the replicas of `group` are counted: `<prefix>:{replicas}:<group>`. It is no
    /// bucket.
    #[must_use]
    pub fn replicas(&self, group: &LimitName) -> String {
        format!("{}:{{{REPLICAS}}}:{group}", self.prefix)
    }

    fn scope(&self, tenant: &Tenant) -> &str {
        if tenant.is_anonymous() {
            ANONYMOUS
        } else {
            &self.tag_scope
        }
    }

    fn build(
        &self,
        scope: &str,
        id: Option<&str>,
        limit: &LimitName,
        member: Option<&str>,
    ) -> BucketKey {
        let mut text = String::with_capacity(64);
        text.push_str(&self.prefix);
        text.push_str(":{");
        let tag_start = text.len();
        text.push_str(scope);
        if let Some(id) = id {
            text.push(':');
            self.push_id(&mut text, id);
        }
        let tag_end = text.len();
        text.push_str("}:");
        text.push_str(limit.as_str());
        if let Some(member) = member {
            text.push(':');
            self.push_id(&mut text, member);
        }
        BucketKey::new(text, tag_start..tag_end)
    }

    fn push_id(&self, text: &mut String, id: &str) {
        if let Some(secret) = &self.secret {
            return push_hash(
                text,
                &secret.clone().chain_update(id).finalize().into_bytes(),
            );
        }
        let start = text.len();
        for byte in id.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-') {
                text.push(char::from(byte));
            } else {
                push_hex(text, "%", &[byte], true);
            }
        }
        if text.len() - start > MAX_ID {
            text.truncate(start);
            push_hash(text, &Sha256::digest(id));
        }
    }
}

// === impl KeySpace ===

impl Default for KeySpace {
    /// The prefix `tg`, the word `tenant`, ids in the clear.
    fn default() -> Self {
        Self {
            prefix: "tg".into(),
            tag_scope: "tenant".into(),
            secret: None,
        }
    }
}

impl fmt::Debug for KeySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySpace")
            .field("prefix", &self.prefix)
            .field("tag_scope", &self.tag_scope)
            .field("hashed", &self.secret.is_some())
            .finish()
    }
}

/// `#` marks a hash: it never stands for itself, since `#` in an id is written `%23`.
fn push_hash(text: &mut String, hash: &[u8]) {
    push_hex(text, "#", hash, false);
}

fn push_hex(text: &mut String, mark: &str, bytes: &[u8], upper: bool) {
    text.push_str(mark);
    for byte in bytes {
        let written = if upper {
            write!(text, "{byte:02X}")
        } else {
            write!(text, "{byte:02x}")
        };
        written.expect("writing to a String");
    }
}

/// A key prefix that is empty or has a brace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPrefix(String);

impl fmt::Display for InvalidPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "key prefix {:?} must not be empty or have braces, which mark the hash tag",
            self.0
        )
    }
}

impl std::error::Error for InvalidPrefix {}

/// A word that cannot stand before the ids of tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidTagScope(String);

impl fmt::Display for InvalidTagScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = TAKEN.join("`, `");
        write!(
            f,
            "tag scope {:?} must match [a-z][a-z0-9_-]* and not be one of `{taken}`",
            self.0
        )
    }
}

impl std::error::Error for InvalidTagScope {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn key(id: &str) -> BucketKey {
        KeySpace::default().bucket(
            &Tenant::new(id, "pro").expect("an id"),
            &LimitName::default(),
        )
    }

    #[test]
    fn keys_are_laid_out_as_documented() {
        let keys = KeySpace::new("shop").expect("a prefix");
        let tenant = Tenant::new("42", "pro").expect("an id");
        let user = LimitName::new("user").expect("a name");
        assert_eq!(key("42").as_str(), "tg:{tenant:42}:default");
        assert_eq!(key("42").tag(), "tenant:42");
        assert_eq!(
            keys.member_bucket(&tenant, &user, "alice").as_str(),
            "shop:{tenant:42}:user:alice"
        );
        assert_eq!(
            keys.global_bucket(&LimitName::new("search").expect("a name"))
                .as_str(),
            "shop:{global}:search"
        );
    }

    #[test]
    fn ids_cannot_break_the_tag_or_meet() {
        let ids = [
            "{",
            "}",
            "{}",
            "a}{b",
            "x{y}z",
            "t:shard:1",
            "acme",
            "ACME",
            "acme:eu",
            "é",
            "e\u{301}",
            "%7B",
            "#",
        ];
        let keys: HashSet<_> = ids.iter().map(|id| key(id).as_str().to_owned()).collect();
        assert_eq!(keys.len(), ids.len());
        assert_eq!(key("é").as_str(), "tg:{tenant:%C3%A9}:default");
        for key in keys {
            assert_eq!(key.matches(['{', '}']).count(), 2, "{key}");
        }
    }

    #[test]
    fn tenant_and_group_are_joined_without_ambiguity() {
        let keys = KeySpace::default();
        let user = LimitName::new("user").expect("a name");
        let one = keys.member_bucket(&Tenant::new("acme", "x").expect("an id"), &user, "eu:gold");
        let two = keys.member_bucket(&Tenant::new("acme:eu", "x").expect("an id"), &user, "gold");
        assert_ne!(one, two);
    }

    #[test]
    fn long_ids_become_their_hash() {
        assert_eq!(
            key(&"a".repeat(128)).as_str().len(),
            "tg:{tenant:}:default".len() + 128
        );
        let long = key(&"a".repeat(129));
        // printf '%0129d' 0 | tr 0 a | sha256sum
        assert_eq!(
            long.as_str(),
            "tg:{tenant:#c12cb024a2e5551cca0e08fce8f1c5e314555cc3fef6329ee994a3db752166ae}:default"
        );
    }

    #[test]
    fn a_secret_hides_every_id() {
        let keys = KeySpace::default().with_secret(b"key");
        let text = "The quick brown fox jumps over the lazy dog";
        let tenant = Tenant::new(text, "pro").expect("an id");
        // The well-known test vector of HMAC-SHA-256.
        let hash = "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8";
        let user = LimitName::new("user").expect("a name");
        assert_eq!(
            keys.member_bucket(&tenant, &user, text).as_str(),
            format!("tg:{{tenant:#{hash}}}:user:#{hash}")
        );
        assert!(!format!("{keys:?}").contains("key\""));
    }

    #[test]
    fn prefixes_that_move_the_tag_are_refused() {
        for bad in ["", "{", "a}", "{tg}"] {
            assert!(KeySpace::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn another_word_stands_before_the_ids_of_tenants_and_of_nobody_else() {
        let keys = KeySpace::default()
            .with_tag_scope("user_2")
            .expect("a word");
        let (name, tenant) = (
            LimitName::default(),
            Tenant::new("42", "pro").expect("an id"),
        );
        let address = Tenant::anonymous("192.0.2.1".parse().expect("an address"));
        for (key, expected) in [
            (keys.bucket(&tenant, &name), "tg:{user_2:42}:default"),
            (
                keys.member_bucket(&tenant, &name, "a"),
                "tg:{user_2:42}:default:a",
            ),
            (
                keys.bucket(&address, &name),
                "tg:{anonymous:192.0.2.1}:default",
            ),
            (keys.global_bucket(&name), "tg:{global}:default"),
            (
                keys.dependency_bucket("db", &name),
                "tg:{dependency:db}:default",
            ),
        ] {
            assert_eq!(key.as_str(), expected);
        }
        for bad in [
            "",
            "1a",
            "-a",
            "A",
            "a:b",
            "a/1",
            "a b",
            "é",
            "a}",
            "global",
            "dependency",
            "replicas",
            "anonymous",
        ] {
            assert!(KeySpace::default().with_tag_scope(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn different_ids_have_different_keys(a in "\\PC{1,200}", b in "\\PC{1,200}") {
            prop_assert_eq!(key(&a) == key(&b), a == b);
            prop_assert_eq!(key(&a).as_str().matches(['{', '}']).count(), 2);
        }
    }
}
