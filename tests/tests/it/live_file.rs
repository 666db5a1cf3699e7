//! A limits file that changes while a limiter runs.

use std::{fs, path::PathBuf, time::Duration};

use tempfile::TempDir;
use tollgate::{
    Cost, Decision, FailurePolicy, Limiter, LimitsFile, Metrics, Source, Tenant, Verdict,
};
use tollgate_tests::RedisServer;

use crate::support::{metric, remaining, store, until};

const DEFAULT: &str = "[limits.default]\nquota = { capacity = 100, rate = \"1/h\" }\n";

struct Service {
    limiter: Limiter,
    metrics: Metrics,
    file: PathBuf,
    _dir: TempDir,
    _redis: RedisServer,
}

impl Service {
    async fn start() -> Self {
        let (redis, dir) = (RedisServer::start(), tempfile::tempdir().expect("a folder"));
        let file = dir.path().join("limits.toml");
        fs::write(&file, DEFAULT).expect("written");
        let limits = LimitsFile::open_with_interval(&file, Duration::from_millis(20));
        let metrics = Metrics::new();
        let builder = Limiter::builder(store(&redis).await)
            .quotas(limits.expect("it is valid"))
            .on_store_failure(FailurePolicy::Closed)
            .deadline(Duration::from_secs(30))
            .observer(metrics.clone());
        Self {
            limiter: builder.build().expect("a limiter"),
            metrics,
            file,
            _dir: dir,
            _redis: redis,
        }
    }

    /// Writes the file, and waits until that is seen.
    async fn write(&self, text: &str, outcome: &str) {
        let reloads = format!("ratelimit_limits_reloads_total{{outcome=\"{outcome}\"}}");
        let before = metric(&self.metrics, &reloads);
        fs::write(&self.file, text).expect("written");
        until(async || metric(&self.metrics, &reloads) > before).await;
    }

    async fn check(&self) -> Decision {
        let acme = Tenant::new("acme", "pro").expect("an id");
        self.limiter.check(&acme, Cost::ONE).await
    }

    fn is_valid(&self) -> bool {
        metric(&self.metrics, "ratelimit_limits_file_valid") == 1.0
    }
}

fn names(decision: &Decision) -> Vec<&str> {
    decision.limits.iter().map(|it| it.name.as_str()).collect()
}

#[tokio::test]
async fn a_limit_is_added_in_shadow_then_enforced_then_switched_off() {
    let service = Service::start().await;
    let with =
        |mode: &str| format!("{DEFAULT}\n[limits.new]\nquota = \"2/h\"\nmode = \"{mode}\"\n");
    assert_eq!(names(&service.check().await), ["default"]);

    service.write(&with("shadow"), "ok").await;
    for lacked in [false, false, true, true] {
        let decision = service.check().await;
        assert!(decision.is_allowed());
        assert_eq!(decision.limits[1].lacked_tokens(), lacked);
    }
    let rejections = |mode: &str| {
        let series = "ratelimit_limit_rejections_total{key_class=\"default\",limit=\"new\"";
        metric(&service.metrics, &format!("{series},mode=\"{mode}\"}}"))
    };
    assert_eq!((rejections("shadow"), rejections("enforce")), (2.0, 0.0));

    service.write(&with("enforce"), "ok").await;
    let denied = service.check().await;
    assert_eq!(denied.verdict, Verdict::Denied);
    assert!(denied.limits[1].lacked_tokens() && !denied.limits[0].lacked_tokens());
    assert_eq!(service.check().await.source, Source::DenialCache);
    assert_eq!((rejections("shadow"), rejections("enforce")), (2.0, 2.0));

    service.write(&with("off"), "ok").await;
    let allowed = service.check().await;
    assert!(allowed.is_allowed(), "also by the denial cache");
    assert_eq!(names(&allowed), ["default"]);
    assert_eq!(
        remaining(&allowed.limits[0]),
        100 - 6,
        "denials cost nothing"
    );
}

#[tokio::test]
async fn a_bad_file_leaves_all_of_the_old_set_in_force() {
    let service = Service::start().await;
    assert!(service.is_valid());
    let half_good = "[limits.default]\nquota = \"5/h\"\n[tiers.pro]\ndefualt = \"7/h\"\n";
    service.write(half_good, "error").await;
    assert!(!service.is_valid());
    assert_eq!(service.check().await.limits[0].capacity(), 100);
    service
        .write(&half_good.replace("defualt", "default"), "ok")
        .await;
    assert!(service.is_valid());
    assert_eq!(service.check().await.limits[0].capacity(), 7);
}

#[tokio::test]
async fn what_remains_does_not_jump_at_an_unrelated_change() {
    let service = Service::start().await;
    for expected in [99, 98, 97] {
        assert_eq!(remaining(&service.check().await.limits[0]), expected);
    }
    let other =
        format!("{DEFAULT}\n[tiers.free]\ndefault = \"1/h\"\n\n[tenants.other]\ntier = \"free\"\n");
    for (text, expected) in [
        (other.as_str(), 96),
        (
            "# A comment.\n[limits.default]\nquota = { rate = \"1/h\", capacity = 100 }\n",
            95,
        ),
    ] {
        service.write(text, "ok").await;
        assert_eq!(remaining(&service.check().await.limits[0]), expected);
    }
}
