//! How much a tenant may spend: the capacity of a bucket and the rate at which it refills.

use std::{convert::Infallible, fmt, num::NonZeroU8, str::FromStr};

/// The largest [`Quota::capacity`] and [`Cost`](crate::Cost), in tokens: 10^12.
pub const MAX_TOKENS: u64 = 1_000_000_000_000;

const MAX_RATE: f64 = 1e6;
const TEN_YEARS_SECS: f64 = 315_360_000.0;

/// A refill rate in tokens per second: a finite number above 0, at most 10^6.
///
/// Written as a number of tokens per span: `"50/s"`, `"1000/m"`, `"1/d"`, `"0.5/s"`, or with a number
/// before the unit, `"7/3s"` (seven tokens every three seconds). Units are `s`, `m`, `h` and `d`.
///
/// ```
/// use tollgate_core::Rate;
///
/// let rate: Rate = "1000/m".parse()?;
/// assert_eq!(rate.per_second(), 1000.0 / 60.0);
/// # Ok::<(), tollgate_core::InvalidQuota>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(f64);

impl Rate {
    /// A rate of `tokens` per second.
    ///
    /// # Errors
    ///
    /// If `tokens` is zero, negative, not finite, or above 10^6.
    pub fn new(tokens: f64) -> Result<Self, InvalidQuota> {
        if tokens.is_finite() && tokens > 0.0 && tokens <= MAX_RATE {
            Ok(Self(tokens))
        } else {
            Err(InvalidQuota::Rate(tokens.to_string()))
        }
    }

    /// Tokens per second.
    #[must_use]
    pub const fn per_second(self) -> f64 {
        self.0
    }
}

// === impl Rate ===

impl FromStr for Rate {
    type Err = InvalidQuota;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (tokens, span) = split(text)?;
        // Kept as the text stands in the error: "1e9/s" says more than a computed number.
        Self::new(tokens / span).map_err(|_| InvalidQuota::Rate(text.to_owned()))
    }
}

impl TryFrom<&str> for Rate {
    type Error = InvalidQuota;

    fn try_from(text: &str) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl TryFrom<f64> for Rate {
    type Error = InvalidQuota;

    fn try_from(tokens: f64) -> Result<Self, Self::Error> {
        Self::new(tokens)
    }
}

impl TryFrom<i32> for Rate {
    type Error = InvalidQuota;

    fn try_from(tokens: i32) -> Result<Self, Self::Error> {
        Self::new(f64::from(tokens))
    }
}

impl From<Infallible> for InvalidQuota {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// `"7/3s"` → 7 tokens, 3 seconds.
fn split(text: &str) -> Result<(f64, f64), InvalidQuota> {
    let syntax = || InvalidQuota::Syntax(text.to_owned());
    let (tokens, span) = text.trim().split_once('/').ok_or_else(syntax)?;
    let unit = span.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let unit_secs = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(syntax()),
    };
    let times = match &span[..span.len() - unit.len()] {
        "" => 1.0,
        digits => digits.parse::<f64>().map_err(|_| syntax())?,
    };
    let tokens = tokens.trim().parse::<f64>().map_err(|_| syntax())?;
    Ok((tokens, times * unit_secs))
}

/// What a bucket holds at most, and how fast it refills.
///
/// Over any span of `T` seconds at most `capacity + rate × T` tokens are spent.
///
/// ```
/// use tollgate_core::Quota;
///
/// // Bursts of 200, 50 tokens per second in the long run.
/// let quota = Quota::new(200, "50/s")?;
/// // One second's worth as the burst.
/// let plain: Quota = "50/s".parse()?;
/// assert_eq!(plain, Quota::new(50, 50)?);
/// # assert_eq!(quota.capacity(), 200);
/// # Ok::<(), tollgate_core::InvalidQuota>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    capacity: u64,
    rate: Rate,
}

impl Quota {
    /// A bucket of `capacity` tokens that refills at `rate`: a [`Rate`], a text such as `"50/s"`, or a
    /// number of tokens per second.
    ///
    /// # Errors
    ///
    /// If the capacity is 0 or above 10^12, the rate is not above 0 and at most 10^6 per second, or
    /// filling the bucket would take more than ten years. There is no quota that means "unlimited" or
    /// "nothing".
    pub fn new<R>(capacity: u64, rate: R) -> Result<Self, InvalidQuota>
    where
        R: TryInto<Rate>,
        R::Error: Into<InvalidQuota>,
    {
        let rate = rate.try_into().map_err(Into::into)?;
        if capacity == 0 || capacity > MAX_TOKENS {
            return Err(InvalidQuota::Capacity(capacity.to_string()));
        }
        if as_f64(capacity) > rate.0 * TEN_YEARS_SECS {
            return Err(InvalidQuota::TooSlow { capacity, rate });
        }
        Ok(Self { capacity, rate })
    }

    /// The most tokens the bucket holds, and so the largest burst.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The refill rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// What one of `parts` replicas may spend on its own: `rate / parts`, and `capacity / parts` rounded down,
    /// but at least `least` tokens, so that a costly request still fits, and never more than the whole.
    #[must_use]
    pub fn share(&self, parts: u32, least: u64) -> Self {
        let parts = parts.max(1);
        let capacity = (self.capacity / u64::from(parts))
            .max(least)
            .clamp(1, self.capacity);
        // A share of a slow quota may take longer to fill than a quota is allowed to.
        let slowest = as_f64(capacity) / TEN_YEARS_SECS;
        let rate = Rate(
            (self.rate.0 / f64::from(parts))
                .max(slowest)
                .min(self.rate.0),
        );
        Self { capacity, rate }
    }

    /// Part `index` of the quota split in `parts`: `rate / parts`, and a capacity such that all parts together
    /// have the whole one (11 tokens over 4 parts: 3, 3, 3 and 2).
    ///
    /// `None` if a part would be left without a token, if it would take more than ten years to fill, or if
    /// `index` is not below `parts`.
    #[must_use]
    pub fn part(&self, index: u8, parts: NonZeroU8) -> Option<Self> {
        let (index, parts) = (u64::from(index), u64::from(parts.get()));
        if index >= parts || self.capacity < parts {
            return None;
        }
        let capacity = self.capacity / parts + u64::from(index < self.capacity % parts);
        Self::new(capacity, self.rate.0 / as_f64(parts)).ok()
    }

    /// The largest number of parts, up to `most`, that the quota can be split in so that each holds at least
    /// `least` tokens: one request of that cost then fits any part. 1 if there is no larger one.
    ///
    /// ```
    /// # use std::num::NonZeroU8;
    /// # use tollgate_core::Quota;
    /// let quota = Quota::new(100, 10)?;
    /// let eight = NonZeroU8::new(8).expect("not 0");
    /// assert_eq!(quota.parts(eight, 12), eight);
    /// assert_eq!(quota.parts(eight, 30).get(), 3);
    /// # Ok::<(), tollgate_core::InvalidQuota>(())
    /// ```
    #[must_use]
    pub fn parts(&self, most: NonZeroU8, least: u64) -> NonZeroU8 {
        let fits = |parts: &NonZeroU8| {
            self.capacity / u64::from(parts.get()) >= least && self.part(0, *parts).is_some()
        };
        (1..=most.get())
            .rev()
            .filter_map(NonZeroU8::new)
            .find(fits)
            .unwrap_or(NonZeroU8::MIN)
    }

    /// Seconds until `tokens` have been refilled, not rounded.
    #[must_use]
    pub fn seconds_for(&self, tokens: u64) -> f64 {
        as_f64(tokens) / self.rate.0
    }
}

// === impl Quota ===

impl FromStr for Quota {
    type Err = InvalidQuota;

    /// Reads `"50/s"`, `"1000/m"`, `"1/d"`: the number before the slash is the capacity, and the rate
    /// refills that many per span.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rate: Rate = text.parse()?;
        let (tokens, _) = split(text)?;
        if tokens.fract() != 0.0 || tokens < 1.0 {
            return Err(InvalidQuota::Capacity(text.to_owned()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and Quota::new checks the range"
        )]
        Self::new(tokens as u64, rate)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens, {}/s", self.capacity, self.rate.0)
    }
}

/// Exact: every number of tokens is at most 10^12, far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "at most 10^12")]
pub(crate) fn as_f64(tokens: u64) -> f64 {
    tokens as f64
}

/// A quota that cannot be: each variant names the field.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum InvalidQuota {
    /// The capacity is not a whole number from 1 to 10^12.
    Capacity(String),
    /// The rate is not a finite number above 0, at most 10^6 per second.
    Rate(String),
    /// Filling `capacity` at `rate` takes more than ten years.
    TooSlow {
        /// The capacity in tokens.
        capacity: u64,
        /// The rate.
        rate: Rate,
    },
    /// Not of the form `tokens/span`.
    Syntax(String),
}

impl fmt::Display for InvalidQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(given) => {
                write!(
                    f,
                    "capacity `{given}` must be a whole number of tokens from 1 to 10^12"
                )
            }
            Self::Rate(given) => {
                write!(
                    f,
                    "rate `{given}` must be above 0 and at most 10^6 tokens per second"
                )
            }
            Self::TooSlow { capacity, rate } => write!(
                f,
                "capacity {capacity} takes more than ten years to fill at a rate of {} tokens per second",
                rate.0
            ),
            Self::Syntax(given) => write!(
                f,
                "`{given}` is not a rate; write tokens per span, such as `50/s`, `1000/m`, `1/d` or `7/3s`"
            ),
        }
    }
}

impl std::error::Error for InvalidQuota {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_tokens_per_span() {
        for (text, per_second) in [
            ("50/s", 50.0),
            ("1000/m", 1000.0 / 60.0),
            ("5/h", 5.0 / 3600.0),
            ("1/d", 1.0 / 86_400.0),
            ("7/3s", 7.0 / 3.0),
            ("0.5/s", 0.5),
            ("1/1.5s", 1.0 / 1.5),
            (" 2/s ", 2.0),
        ] {
            assert_eq!(
                text.parse::<Rate>().map(Rate::per_second),
                Ok(per_second),
                "{text}"
            );
        }
    }

    #[test]
    fn a_quota_text_gives_the_capacity_too() {
        assert_eq!("1000/m".parse::<Quota>(), Quota::new(1000, 1000.0 / 60.0));
        assert!(matches!(
            "0.5/s".parse::<Quota>(),
            Err(InvalidQuota::Capacity(_))
        ));
    }

    #[test]
    fn zero_negative_and_endless_quotas_are_refused_by_field() {
        for rate in [
            0.0,
            -1.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1_000_001.0,
        ] {
            assert!(
                matches!(Quota::new(10, rate), Err(InvalidQuota::Rate(_))),
                "{rate}"
            );
        }
        for capacity in [0, MAX_TOKENS + 1, u64::MAX] {
            assert!(
                matches!(Quota::new(capacity, 1), Err(InvalidQuota::Capacity(_))),
                "{capacity}"
            );
        }
        for text in ["0/s", "-1/s", "inf/s", "nan/s", "1e309/s", "5/0s"] {
            assert!(
                matches!(text.parse::<Quota>(), Err(InvalidQuota::Rate(_))),
                "{text}"
            );
        }
        for text in [
            "",
            "50",
            "50/",
            "/s",
            "50/w",
            "50/s/s",
            "five/s",
            "50/1.2.3s",
        ] {
            assert!(
                matches!(text.parse::<Quota>(), Err(InvalidQuota::Syntax(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn a_bucket_fills_within_ten_years() {
        assert!(Quota::new(1, 1.0 / TEN_YEARS_SECS).is_ok());
        assert!(matches!(
            Quota::new(2, 1.0 / TEN_YEARS_SECS),
            Err(InvalidQuota::TooSlow { .. })
        ));
    }

    #[test]
    fn a_share_is_a_part_but_fits_the_costliest_request() {
        let quota = Quota::new(100, 10).expect("a quota");
        assert_eq!(Some(quota.share(4, 1)), Quota::new(25, 2.5).ok());
        assert_eq!(Some(quota.share(4, 40)), Quota::new(40, 2.5).ok());
        assert_eq!(Some(quota.share(1000, 0)), Quota::new(1, 0.01).ok());
        assert_eq!(quota.share(0, 0), quota);
        assert_eq!(
            quota.share(2, 1_000).capacity(),
            100,
            "never more than the whole"
        );
        let slow = Quota::new(1, 1.0 / TEN_YEARS_SECS).expect("a quota");
        assert_eq!(slow.share(3, 1), slow);
    }

    #[test]
    fn parts_make_up_the_whole() {
        let quota = Quota::new(11, 2).expect("a quota");
        let four = NonZeroU8::new(4).expect("not 0");
        let parts: Vec<_> = (0..4).filter_map(|i| quota.part(i, four)).collect();
        let capacities: Vec<_> = parts.iter().map(Quota::capacity).collect();
        assert_eq!(capacities, [3, 3, 3, 2]);
        assert!(parts.iter().all(|part| part.rate() == Rate(0.5)));
        assert_eq!(quota.part(4, four), None);
        let twelve = NonZeroU8::new(12).expect("not 0");
        assert_eq!(quota.part(0, twelve), None, "one would be empty");
        assert_eq!(quota.part(0, NonZeroU8::MIN), Some(quota));
    }

    #[test]
    fn there_are_as_many_parts_as_can_be() {
        let parts = |quota: Quota, most, least| {
            let most = NonZeroU8::new(most).expect("not 0");
            quota.parts(most, least).get()
        };
        let quota = Quota::new(11, 2).expect("a quota");
        assert_eq!(parts(quota, 4, 0), 4);
        assert_eq!(parts(quota, 4, 2), 4, "the smallest holds 2");
        assert_eq!(parts(quota, 4, 3), 3);
        assert_eq!(parts(quota, 255, 1), 11, "none is empty");
        assert_eq!(parts(quota, 4, 12), 1, "not even the whole one holds that");
        // Three parts take 4 tokens each, and so twelve years for what the whole does in ten.
        let slow = Quota::new(10, 10.0 / TEN_YEARS_SECS).expect("a quota");
        assert_eq!(parts(slow, 4, 1), 2);
    }

    #[test]
    fn slow_and_odd_rates_are_written_plainly() {
        assert!(Quota::new(1, "1/d").is_ok());
        assert!(Quota::new(2, 0.1).is_ok());
        assert!(Quota::new(100_000, "100000/d").is_ok());
    }
}
