//! `replica URL STAGE CAPACITY:RATE…`: one of several processes that share a Redis, with one stage before it.
//!
//! STAGE is `plain`, `denials`, `coalesce`, `both`, `leases` or `shards`. Each quota is a tier, named by its
//! number, from 0. Carries out what it reads, line by line, and answers each with a line:
//!
//! * `replay I N`: every Nth request of the recorded traffic, from the Ith on, up to 32 at a time, in tier 0.
//!   Answers with what was admitted, by tenant.
//! * `ask TIER N`: N requests of the tenant `shared`, one after the other. Answers with how many were allowed.
//! * `hold TIER`: the same until it holds leased tokens. Answers as `ask`.
//! * `spend MILLIS`: requests of `shared` in tier 0, four at a time, for so long. Answers with how many were
//!   allowed, and when it started and stopped, in milliseconds of the machine's clock.
//! * `leased`: answers with the tokens that it holds.
//!
//! When there is nothing more to read, it shuts down and ends.

use std::{
    collections::BTreeMap,
    env, io,
    num::NonZeroU8,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep},
};
use tollgate::{
    Cost, FailurePolicy, LeaseSettings, LimitName, LimitRule, Limiter, Observer, Quota, Quotas,
    RedisStore, Tenant, Verdict,
};
use tollgate_tests::traffic;

const AT_A_TIME: usize = 32;

#[derive(Default)]
struct Leased(AtomicI64);

impl Observer for Leased {
    fn leased(&self, _: &str, tokens: i64) {
        self.0.fetch_add(tokens, SeqCst);
    }
}

#[derive(Clone)]
struct Replica {
    limiter: Limiter,
    leased: Arc<Leased>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<_> = env::args().skip(1).collect();
    let [url, stage, quotas @ ..] = args.as_slice() else {
        panic!("usage: replica URL STAGE CAPACITY:RATE…");
    };
    let replica = Replica::start(url, stage, quotas).await;
    loop {
        // Nothing else is done meanwhile that waits for anything but Redis's answers, which keep.
        let Some(command) = read().await else {
            break;
        };
        println!("{}", replica.carry_out(&command).await);
    }
    replica.limiter.shutdown().await;
}

/// The next line; `None` at the end.
async fn read() -> Option<String> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        let length = io::stdin().read_line(&mut line).expect("standard input");
        (length > 0).then_some(line)
    });
    line.await.expect("no panic")
}

impl Replica {
    async fn start(url: &str, stage: &str, tiers: &[String]) -> Self {
        let store = RedisStore::builder(url).strict(true);
        let store = store.connect().await.expect("a store");
        let tiers = tiers.iter().map(|quota| {
            let (capacity, rate) = quota.split_once(':').expect("CAPACITY:RATE");
            Quota::new(capacity.parse().expect("a capacity"), rate).expect("a quota")
        });
        let tiers: Vec<_> = tiers.collect();
        let mut rule = LimitRule::new(LimitName::default(), tiers[0]);
        for (number, quota) in tiers.into_iter().enumerate() {
            rule = rule.tier(number.to_string(), quota);
        }
        if stage == "leases" {
            rule = rule.leased();
        }
        let mut quotas = Quotas::of(rule);
        if stage == "shards" {
            let four = NonZeroU8::new(4).expect("not 0");
            for tenant in traffic::TENANTS {
                quotas = quotas.shards_of(tenant.to_string(), four);
            }
        }
        let mut settings = LeaseSettings::default();
        // Only what a test does ends a lease.
        settings.life = Duration::from_secs(60);
        settings.largest_batch = 10;
        settings.share = 0.2;
        let leased = Arc::new(Leased::default());
        let limiter = Limiter::builder(store)
            .quotas(quotas)
            .denial_cache(stage == "denials" || stage == "both")
            .coalescing(stage == "coalesce" || stage == "both")
            .leases(settings)
            .deadline(Duration::from_secs(10))
            .observer(leased.clone())
            .on_store_failure(FailurePolicy::Closed)
            .build();
        let limiter = limiter.expect("a limiter");
        Self { limiter, leased }
    }

    async fn carry_out(&self, command: &str) -> String {
        let words: Vec<_> = command.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words[0] {
            "replay" => {
                let admitted = self.replay(number(1), number(2)).await;
                serde_json::to_string(&admitted).expect("numbers")
            }
            "ask" => {
                let mut allowed = 0;
                for _ in 0..number(2) {
                    allowed += u64::from(self.ask("shared", words[1], Cost::ONE).await);
                }
                allowed.to_string()
            }
            "hold" => {
                let mut allowed = 0;
                while self.leased() < 3 {
                    allowed += u64::from(self.ask("shared", words[1], Cost::ONE).await);
                }
                allowed.to_string()
            }
            "spend" => {
                let (start, end) = (now(), Instant::now() + Duration::from_millis(number(1)));
                let mut tasks = JoinSet::new();
                for _ in 0..4 {
                    tasks.spawn(self.clone().spend(end));
                }
                let allowed: u64 = tasks.join_all().await.into_iter().sum();
                format!("{allowed} {start} {}", now())
            }
            "leased" => self.leased().to_string(),
            other => panic!("no command {other}"),
        }
    }

    async fn replay(&self, first: u64, step: u64) -> BTreeMap<u64, u64> {
        let own = traffic::recorded()
            .skip(usize::try_from(first).expect("few"))
            .step_by(usize::try_from(step).expect("few"));
        let own: Arc<[u64]> = own.collect();
        let mut tasks = JoinSet::new();
        for task in 0..AT_A_TIME {
            let (replica, own) = (self.clone(), own.clone());
            tasks.spawn(async move {
                let mut admitted = BTreeMap::<u64, u64>::new();
                for tenant in own.iter().skip(task).step_by(AT_A_TIME) {
                    let cost = Cost::try_from(traffic::cost(*tenant)).expect("a cost");
                    if replica.ask(&tenant.to_string(), "0", cost).await {
                        *admitted.entry(*tenant).or_default() += 1;
                    }
                    yield_now().await;
                }
                admitted
            });
        }
        let mut sum = BTreeMap::<u64, u64>::new();
        for (tenant, admitted) in tasks.join_all().await.into_iter().flatten() {
            *sum.entry(tenant).or_default() += admitted;
        }
        sum
    }

    async fn spend(self, end: Instant) -> u64 {
        let mut allowed = 0;
        while Instant::now() < end {
            if self.ask("shared", "0", Cost::ONE).await {
                allowed += 1;
            } else {
                sleep(Duration::from_millis(1)).await;
            }
        }
        allowed
    }

    async fn ask(&self, tenant: &str, tier: &str, cost: Cost) -> bool {
        let tenant = Tenant::new(tenant, tier).expect("an id");
        let decision = self.limiter.check(&tenant, cost).await;
        assert_ne!(
            decision.verdict,
            Verdict::Unavailable,
            "the test's own Redis"
        );
        decision.is_allowed()
    }

    fn leased(&self) -> u64 {
        u64::try_from(self.leased.0.load(SeqCst)).expect("not negative")
    }
}

fn now() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a clock after 1970").as_millis()
}
