//! What is wrong with a file is said with its line, its field, and the mend.

use crate::LimitsFile;

/// The faults of a text, a line each.
fn faults(text: &str) -> Vec<String> {
    match LimitsFile::parse(text, "limits.toml") {
        Ok(_) => Vec::new(),
        Err(error) => error.faults.iter().map(ToString::to_string).collect(),
    }
}

/// Every text with its faults.
#[track_caller]
fn assert_faults(table: &[(&str, &[&str])]) {
    for (text, expected) in table {
        assert_eq!(faults(text), *expected, "\n{text}");
    }
}

/// The one fault of a limit of 2 tokens, named `a`, that has this field from the third line on.
#[track_caller]
fn assert_field_faults(table: &[(&str, &str)]) {
    for (field, expected) in table {
        let text = format!("[limits.a]\nquota = \"2/s\"\n{field}");
        assert_eq!(faults(&text), [*expected], "\n{text}");
    }
}

#[test]
fn what_is_no_toml_is_said_with_its_line() {
    assert_faults(&[
        (
            "[limits.a]\nquota = \"2/s\nmode = 1",
            &["2:13: this is not TOML: invalid basic string, expected `\"`"],
        ),
        (
            "[limits.a\nquota = \"2/s\"",
            &["1:10: this is not TOML: unclosed table, expected `]`"],
        ),
    ]);
}

#[test]
fn a_key_is_written_once() {
    assert_faults(&[
        (
            "[limits.a]\nquota = \"2/s\"\nquota = \"3/s\"",
            &["3:1: duplicate key: `quota` is already written further up"],
        ),
        (
            "[limits.a]\nquota = \"2/s\"\n[limits.a]\nmode = \"off\"",
            &["3:9: duplicate key: `a` is already written further up"],
        ),
        (
            "[limits.a]\nquota = \"2/s\"\n[tenants.acme]\nshards = 2\n[tenants.\"acme\"]",
            &["5:10: duplicate key: `\"acme\"` is already written further up"],
        ),
        (
            "[limits.a]\nquota = \"2/s\"\n[tenants.acme]\nlimits = { a = \"1/s\", a = \"3/s\" }",
            &["4:23: duplicate key: `a` is already written further up"],
        ),
    ]);
}

#[test]
fn unknown_fields_are_refused_at_every_level() {
    assert_faults(&[
        (
            "[limits.a]\nquota = { capacity = 20, rate = 1, refil = \"2/s\" }",
            &[
                "2:36: limits.a.quota.refil: there is no field `refil` here; there are `capacity`, `rate`",
            ],
        ),
        (
            "[limits.a]\nquota = \"2/s\"\nmoed = \"off\"",
            &["3:1: limits.a.moed: there is no field `moed` here; did you mean `mode`?"],
        ),
        (
            "replica = 3\n[limits.a]\nquota = \"2/s\"\n[tenants.x]\nlimit = {}",
            &[
                "1:1: replica: there is no field `replica` here; did you mean `replicas`?",
                "5:1: tenants.x.limit: there is no field `limit` here; did you mean `limits`?",
            ],
        ),
        (
            "[limits.a]\nquota = \"2/s\"\n[tenants.acme.com]\ntier = \"pro\"",
            &[
                "3:15: tenants.acme.com: there is no field `com` here; there are `tier`, `home`, `shards`, `limits`; a name with a dot in it is quoted: \"acme.com\"",
            ],
        ),
    ]);
}

#[test]
fn names_lead_to_something() {
    assert_faults(&[
        (
            "[limits.a]\nquota = \"2/s\"\n[tiers.free]\n[tiers.pro]\n[tenants.x]\ntier = \"gold\"",
            &["6:8: tenants.x.tier: there is no tier `gold`; there are `free`, `pro`"],
        ),
        (
            "[limits.default]\nquota = \"2/s\"\n[tiers.pro]\ndefualt = \"3/s\"",
            &["4:1: tiers.pro.defualt: there is no limit `defualt`; did you mean `default`?"],
        ),
        (
            "[limits.default]\nquota = \"2/s\"\n[tenants.x]\nlimits = { reports = \"3/s\" }",
            &["4:12: tenants.x.limits.reports: there is no limit `reports`; there are `default`"],
        ),
        (
            "[limits.a]\nquota = \"2/s\"\n[tenants.\"\"]\nshards = 2\n[tiers.\"\"]",
            &[
                "3:10: tenants.\"\": a tenant's id is not empty",
                "5:8: tiers.\"\": a tier has a name",
            ],
        ),
        (
            "[limits.Default]\nquota = \"2/s\"",
            &[
                "1:9: limits.Default: \"Default\" is not a name for a limit; use a lower-case letter, then at most 63 of a-z 0-9 _ . -",
            ],
        ),
        (
            "[limits.\"\"]\nquota = \"2/s\"",
            &[
                "1:9: limits.\"\": \"\" is not a name for a limit; use a lower-case letter, then at most 63 of a-z 0-9 _ . -",
            ],
        ),
    ]);
}

#[test]
fn a_limit_has_a_quota_and_there_is_a_limit() {
    assert_faults(&[
        ("", &["limits: there must be at least one limit"]),
        (
            "\nlimits = {}",
            &["2:1: limits: there must be at least one limit"],
        ),
        (
            "limits = 3",
            &["1:10: limits: `3` is not a table of limits by name"],
        ),
        (
            "[limits]\ndefault = \"2/s\"",
            &["2:11: limits.default: `\"2/s\"` is not a limit such as `{ quota = \"50/s\" }`"],
        ),
        (
            "[limits.a]\nmode = \"shadow\"",
            &[
                "1:9: limits.a: `quota` is missing: a quota such as `{ capacity = 20, rate = \"2/s\" }`, `\"50/s\"`, `\"unlimited\"` or `\"blocked\"`",
            ],
        ),
        (
            "limits.a.quota = { capacity = 3 }",
            &[
                "1:10: limits.a.quota: `rate` is missing: tokens per span such as `\"2/s\"`, or a number per second",
            ],
        ),
    ]);
}

#[test]
fn no_capacity_is_zero_negative_endless_or_broken() {
    for given in [
        "0",
        "-5",
        "1.5",
        "nan",
        "-nan",
        "inf",
        "-inf",
        "1e309",
        "1000000000001",
        "99999999999999999999999",
        "\"20\"",
        "true",
    ] {
        let text = format!("[limits.a]\nquota = {{ capacity = {given}, rate = 1 }}");
        let expected = format!(
            "2:22: limits.a.quota.capacity: capacity `{given}` must be a whole number of tokens from 1 to 10^12"
        );
        assert_eq!(faults(&text), [expected]);
    }
}

#[test]
fn no_rate_is_zero_negative_or_endless() {
    let numbers = ["0", "0.0", "-1.5", "nan", "inf", "-inf", "1e309", "1000001"];
    let texts = ["0/s", "-1/s", "nan/s", "inf/s", "1e309/s", "5/0s"];
    let quoted = texts.map(|it| (format!("\"{it}\""), it));
    let plain = numbers.map(|it| (it.to_owned(), it));
    for (given, shown) in plain.into_iter().chain(quoted) {
        let problem = format!("rate `{shown}` must be above 0 and at most 10^6 tokens per second");
        let text = format!("[limits.a]\nquota = {{ rate = {given}, capacity = 5 }}");
        let expected = format!("2:18: limits.a.quota.rate: {problem}");
        assert_eq!(faults(&text), [expected]);
        if given.starts_with('"') {
            let text = format!("limits.a.quota = \"2/s\"\ntiers.pro.a = {given}");
            assert_eq!(faults(&text), [format!("2:15: tiers.pro.a: {problem}")]);
        }
    }
}

#[test]
fn a_quota_is_written_in_one_of_its_forms() {
    assert_faults(&[
        (
            "limits.a.quota = \"lots\"",
            &[
                "1:18: limits.a.quota: `\"lots\"` is not a quota such as `{ capacity = 20, rate = \"2/s\" }`, `\"50/s\"`, `\"unlimited\"` or `\"blocked\"`",
            ],
        ),
        (
            "limits.a.quota = 'default'",
            &[
                "1:18: limits.a.quota: `'default'` is not a quota such as `{ capacity = 20, rate = \"2/s\" }`, `\"50/s\"`, `\"unlimited\"` or `\"blocked\"`",
            ],
        ),
        (
            "limits.a.quota = \"0.5/s\"",
            &[
                "1:18: limits.a.quota: `0.5/s` gives no whole number of tokens as the capacity; write both, such as `{ capacity = 1, rate = \"0.5/s\" }`",
            ],
        ),
        (
            "limits.a.quota = { capacity = 5, rate = \"5 per second\" }",
            &[
                "1:41: limits.a.quota.rate: `5 per second` is not a rate; write tokens per span, such as `50/s`, `1000/m`, `1/d` or `7/3s`",
            ],
        ),
        (
            "limits.a.quota = { capacity = 1000000, rate = '1/d' }",
            &[
                "1:10: limits.a.quota: capacity 1000000 takes more than ten years to fill at a rate of 0.000011574074074074073 tokens per second",
            ],
        ),
    ]);
}

#[test]
fn fields_of_a_limit_say_what_they_take() {
    assert_field_faults(&[
        (
            "scope = \"user\"",
            "3:9: limits.a.scope: `\"user\"` is not a scope; there are `tenant`, `member:` and a kind, `global`, `dependency:` and a name",
        ),
        (
            "scope = \"member:\"",
            "3:9: limits.a.scope: a kind of member has a name",
        ),
        (
            "scope = \"dependency:\"",
            "3:9: limits.a.scope: a dependency has a name",
        ),
        (
            "mode = \"of\"",
            "3:8: limits.a.mode: `\"of\"` is not a mode; there are `enforce`, `shadow` and `off`",
        ),
        (
            "enforce = 1.5",
            "3:11: limits.a.enforce: `1.5` is not a share of tenants, a number from 0 to 1",
        ),
        (
            "enforce = nan",
            "3:11: limits.a.enforce: `nan` is not a share of tenants, a number from 0 to 1",
        ),
        (
            "lease = \"yes\"",
            "3:9: limits.a.lease: `\"yes\"` is not `true` or `false`",
        ),
        (
            "on_store_failure = \"fail\"",
            "3:20: limits.a.on_store_failure: `\"fail\"` is not a failure policy; there are `open`, `closed` and `local`",
        ),
        (
            "on_store_failure = \"local\"",
            "3:20: limits.a.on_store_failure: `local` divides limits by the number of replicas: say how many in `replicas`",
        ),
        (
            "routes = []",
            "3:10: limits.a.routes: an empty list covers nothing; leave `routes` out to cover all requests, or write `mode = \"off\"`",
        ),
        (
            "routes = [\n  \"/a\",\n  \"/b/:id\",\n]",
            "5:3: limits.a.routes: `/b/:id` is not a route such as `/reports/{id}` or `POST /reports/{*rest}`: write `{name}` for a segment, `{*name}` for the rest",
        ),
        (
            "routes = \"/a\"",
            "3:10: limits.a.routes: `\"/a\"` is not a list of routes, such as `[\"/reports/{id}\", \"POST /export\"]`",
        ),
    ]);
}

#[test]
fn costs_are_whole_and_payable_and_may_be_free() {
    assert_eq!(
        faults(
            "[limits.a]\nquota = \"2/s\"\ncost = 0\ncosts = { \"/a\" = 0 }\n[routes]\n\"/b\" = 0"
        ),
        [""; 0]
    );
    // Blocked tenants can pay nothing, and an unlimited one anything.
    for quota in ["blocked", "unlimited"] {
        let text = format!("[limits.a]\nquota = \"{quota}\"\ncost = 50\n[routes]\n\"/a\" = 50");
        assert_eq!(faults(&text), [""; 0]);
    }
    assert_field_faults(&[
        (
            "cost = -1",
            "3:8: limits.a.cost: `-1` is not a cost: a whole number of tokens from 0 (free) to 10^12",
        ),
        (
            "cost = 1.5",
            "3:8: limits.a.cost: `1.5` is not a cost: a whole number of tokens from 0 (free) to 10^12",
        ),
        (
            "cost = 3",
            "3:8: limits.a.cost: a cost of 3 is above every capacity of this limit (at most 2), and could never be paid",
        ),
        (
            "costs = { \"POST /a\" = 3 }",
            "3:23: limits.a.costs.\"POST /a\": a cost of 3 is above every capacity of this limit (at most 2), and could never be paid",
        ),
        (
            "costs = { b = 1 }",
            "3:11: limits.a.costs.b: `b` is not a route such as `/reports/{id}` or `POST /reports/{*rest}`: a path starts with `/`",
        ),
        (
            "routes = [\"/a\"]\ncosts = { \"/b\" = 1 }",
            "4:18: limits.a.costs.\"/b\": the limit does not cover this route",
        ),
        (
            "[routes]\n\"/a\" = 3",
            "4:8: routes.\"/a\": a cost of 3 is above every capacity of the limit `a` (at most 2), and could never be paid",
        ),
        (
            "[routes]\n\"/a\" = \"free\"",
            "4:8: routes.\"/a\": `\"free\"` is not a cost or `exempt`; a cost is a whole number of tokens from 0 (free) to 10^12",
        ),
        (
            "[routes]\n\"post /a\" = 1",
            "4:1: routes.\"post /a\": `post /a` is not a route such as `/reports/{id}` or `POST /reports/{*rest}`: a method is written in capital letters",
        ),
    ]);
}

#[test]
fn shards_and_replicas_are_counts_that_fit() {
    assert_field_faults(&[
        (
            "[tenants.x]\nshards = 0",
            "4:10: tenants.x.shards: `0` is not a number of shards from 1 to 255",
        ),
        (
            "[tenants.x]\nshards = 256",
            "4:10: tenants.x.shards: `256` is not a number of shards from 1 to 255",
        ),
        (
            "[tenants.x]\nshards = 4\nlimits = { a = \"3/s\" }",
            "4:10: tenants.x.shards: 4 parts would be too small for what its limits allow and cost; at most 3 fit",
        ),
    ]);
    assert_faults(&[
        (
            "replicas = 0\non_store_failure = \"local\"\n[limits.a]\nquota = \"2/s\"",
            &["1:12: replicas: `0` is not a number of replicas, from 1"],
        ),
        (
            "on_store_failure = \"local\"\n[limits.a]\nquota = \"2/s\"",
            &[
                "1:20: on_store_failure: `local` divides limits by the number of replicas: say how many in `replicas`",
            ],
        ),
    ]);
}

#[test]
fn a_shared_limit_is_the_same_for_all() {
    let problem = "all tenants share the limit `a`; only its own `quota` says how much";
    for scope in ["global", "dependency:search"] {
        let text = format!(
            "[limits.a]\nquota = \"2/s\"\nscope = \"{scope}\"\n[tiers.pro]\na = \"3/s\"\n[tenants.x.limits]\na = \"3/s\""
        );
        assert_eq!(
            faults(&text),
            [
                format!("5:1: tiers.pro.a: {problem}"),
                format!("7:1: tenants.x.limits.a: {problem}"),
            ]
        );
    }
}

#[test]
fn a_request_is_charged_by_at_most_eight_limits() {
    let limits = |count, more: &str| -> String {
        let limit = |i| format!("[limits.l{i}]\nquota = \"2/s\"\n{more}\n");
        (0..count).map(limit).collect()
    };
    assert_eq!(faults(&limits(8, "")), [""; 0]);
    assert_eq!(
        faults(&limits(9, "")),
        ["1:2: limits: 9 limits of the tenant cover every request; at most 8 can"]
    );
    assert_eq!(
        faults(&limits(9, "routes = [\"/a\"]")),
        ["1:2: limits: 9 limits of the tenant cover `/a`; at most 8 can"]
    );
    assert_eq!(
        faults(&limits(9, "scope = \"global\"")),
        ["1:2: limits: 9 limits that share one scope cover every request; at most 8 can"]
    );
}

#[test]
fn all_faults_are_said_at_once_from_the_first_line_on() {
    let text = "\u{feff}on_store_failure = 1\n[limits.a]\nquota = \"0/s\"\nquota = \"1/s\"\n[tenants.x]\ntier = \"gold\"\n[tenants.y]\ntier = \"lead\"";
    let error = LimitsFile::parse(text, "conf/limits.toml").expect_err("faults");
    assert_eq!(
        error.to_string().split("; conf/").collect::<Vec<_>>(),
        [
            "conf/limits.toml:1:20: on_store_failure: `1` is not a failure policy; there are `open`, `closed` and `local`",
            "limits.toml:3:9: limits.a.quota: rate `0/s` must be above 0 and at most 10^6 tokens per second",
            "limits.toml:4:1: duplicate key: `quota` is already written further up",
            "limits.toml:6:8: tenants.x.tier: there is no tier `gold`; there are no tiers",
            "limits.toml:8:8: tenants.y.tier: there is no tier `lead`; there are no tiers",
        ]
    );
}

#[test]
fn an_error_is_one_line_of_bounded_length() {
    let tenants: String = (0..1_000)
        .map(|i| format!("[tenants.t{i}]\ntier = \"x\"\n"))
        .collect();
    let text = format!("limits.a.quota = '''{}\n2'''\n{tenants}", "1".repeat(1_000));
    let error = LimitsFile::parse(&text, "limits.toml").expect_err("faults");
    assert_eq!(error.faults.len(), 1_001);
    let shown = error.to_string();
    assert!(shown.ends_with("; and 981 more"), "{shown}");
    assert!(shown.len() < 4_000 && !shown.contains('\n'), "{shown}");
    let text = "[limits.a]\nquota = \"2/s\"\nscope = \"\"\"x\ny\"\"\"";
    assert!(faults(text)[0].contains("x\\ny"), "{:?}", faults(text));
}

#[test]
fn columns_count_characters() {
    let text = "limits = { a = { quota = \"2/s\" } }\ntenants = { 'ÄÖÜ' = { tier = 1 } }";
    assert_eq!(
        faults(text),
        ["2:30: tenants.\"ÄÖÜ\".tier: `1` is not the name of a tier"]
    );
}

#[test]
fn regions_say_which_and_how_much() {
    let with = |regions: &str| format!("{regions}\n[limits.a]\nquota = \"100/s\"");
    let two = "[regions]\neu = { share = 0.4 }\nus = { share = 0.6 }";
    for (text, expected) in [
        (
            with("region = \"eu\""),
            "1:10: region: there are no regions; list them with their shares in `regions`",
        ),
        (
            with(two),
            "1:2: regions: `region` is missing: which of these this deployment is in, the name of a region, or `{ env = \"REGION\" }` for the environment variable with its name",
        ),
        (
            with("region = \"eu\"\n[regions]"),
            "2:2: regions: there are no regions here; list all of them with their shares",
        ),
        (
            with(&format!("region = \"mars\"\n{two}")),
            "1:10: region: there is no region `mars`; there are `eu`, `us`",
        ),
        (
            with(&format!("region = 1\n{two}")),
            "1:10: region: `1` is not the name of a region, or `{ env = \"REGION\" }` for the environment variable with its name",
        ),
        (
            with(&format!("region = {{ env = \"TOLLGATE_NO_SUCH\" }}\n{two}")),
            "1:18: region.env: the environment variable `TOLLGATE_NO_SUCH`, which names this region, is not set",
        ),
        (
            with(&format!("region = {{ env = \"A=B\" }}\n{two}")),
            "1:18: region.env: `\"A=B\"` is not the name of an environment variable",
        ),
        (
            with("region = \"eu\"\n[regions]\neu = { away = 0.1 }"),
            "3:1: regions.eu: `share` is missing: a share of quotas, a number above 0 and at most 1",
        ),
        (
            with("region = \"eu\"\n[regions]\neu = { share = 0 }"),
            "3:16: regions.eu.share: `0` is not a share of quotas, a number above 0 and at most 1",
        ),
        (
            with("region = \"eu\"\n[regions]\neu = { share = 1, away = 1.0 }"),
            "3:26: regions.eu.away: `1.0` is not a share of quotas, a number from 0 and below 1",
        ),
        (
            with(&format!("region = \"eu\"\n{two}\nap = {{ share = 0.1 }}")),
            "2:2: regions: the shares add up to 1.1, and there is no more than 1 to give away: lower some",
        ),
        (
            with(&format!(
                "region = \"eu\"\n{two}\n[tenants.x]\nhome = \"mars\""
            )),
            "6:8: tenants.x.home: there is no region `mars`; there are `eu`, `us`",
        ),
        // The tenant's home is not at fault.
        (
            with(&format!("region = 1\n{two}\n[tenants.x]\nhome = \"eu\"")),
            "1:10: region: `1` is not the name of a region, or `{ env = \"REGION\" }` for the environment variable with its name",
        ),
        (
            format!("region = \"eu\"\n{two}\n[limits.a]\nquota = \"2/s\""),
            "6:9: limits.a.quota: the part of the region `eu` is less than one token of 2; a capacity of 3 would do, or a larger share",
        ),
    ] {
        assert_eq!(faults(&text), [expected], "\n{text}");
    }
}

#[test]
fn the_environment_may_say_which_region_it_is() {
    // Cargo sets it to the name of the package.
    let text = "region = { env = \"CARGO_PKG_NAME\" }\n[regions.tollgate-quota]\nshare = 1.0\n[limits.a]\nquota = \"2/s\"";
    let parsed = LimitsFile::parse(text, "limits.toml").expect("no faults");
    let own = parsed.quotas.regions().map(crate::Regions::own);
    assert_eq!(own, Some("tollgate-quota"));
}
