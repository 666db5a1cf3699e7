//! The schema for editors says what the parser says, as far as a schema can.

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::FULL;
use crate::{
    LimitsFile,
    file::parse::{FILE_FIELDS, LIMIT_FIELDS, QUOTA_FIELDS, REGION_FIELDS, TENANT_FIELDS},
};

/// What only the parser can tell: whether names lead to something, and whether numbers fit one another.
const BEYOND_A_SCHEMA: [&str; 12] = [
    "there is no tier",
    "there is no limit",
    "there is no region",
    "add up to",
    "less than one token",
    "all tenants share the limit",
    "above every capacity",
    "does not cover this route",
    "cannot be split",
    "number of replicas: say how many",
    "takes more than ten years",
    "parts would be too small",
];

fn schema() -> Value {
    let text = include_str!("../../../../../docs/limits.schema.json");
    serde_json::from_str(text).expect("JSON")
}

fn validator() -> Validator {
    jsonschema::validator_for(&schema()).expect("a schema")
}

/// What the parser refuses for reasons that a schema could know.
fn refusals(text: &str) -> Vec<String> {
    let faults = LimitsFile::parse(text, "limits.toml").err();
    let faults = faults.into_iter().flat_map(|error| error.faults);
    let problems = faults.map(|fault| fault.to_string());
    problems
        .filter(|problem| !BEYOND_A_SCHEMA.iter().any(|it| problem.contains(it)))
        .collect()
}

fn assert_agreement(validator: &Validator, text: &str) {
    let value: Value = toml::from_str(text).expect("TOML");
    let by_schema: Vec<_> = validator
        .iter_errors(&value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    let by_parser = refusals(text);
    assert_eq!(
        by_schema.is_empty(),
        by_parser.is_empty(),
        "schema: {by_schema:#?}\nparser: {by_parser:#?}\n{text}"
    );
}

#[test]
fn every_field_is_in_the_schema_and_the_example() {
    let schema = schema();
    let full: Value = toml::from_str(FULL).expect("TOML");
    let keys = |value: Option<&Value>| -> Vec<String> {
        let fields = value.and_then(Value::as_object).expect("an object");
        let mut keys: Vec<_> = fields.keys().cloned().collect();
        keys.sort();
        keys
    };
    for (place, fields, example) in [
        ("", FILE_FIELDS, ""),
        ("/definitions/limit", LIMIT_FIELDS, "/limits/reports"),
        ("/definitions/quota", QUOTA_FIELDS, "/limits/default/quota"),
        ("/definitions/region", REGION_FIELDS, "/regions/eu"),
        ("/definitions/tenant", TENANT_FIELDS, "/tenants/acme"),
    ] {
        let mut fields = fields.to_vec();
        fields.sort_unstable();
        let place = format!("{place}/properties");
        assert_eq!(keys(schema.pointer(&place)), fields, "{place}");
        assert_eq!(keys(full.pointer(example)), fields, "{example}");
    }
}

#[test]
fn the_example_is_valid() {
    let parsed = LimitsFile::parse(FULL, "limits.toml").map_err(|error| error.to_string());
    assert!(parsed.expect("valid").warnings.is_empty());
    assert_agreement(&validator(), FULL);
}

/// Puts each of many values in the place of each value of the example, and next to it under other keys.
#[test]
fn schema_and_parser_agree_on_every_change_of_the_example() {
    let validator = validator();
    let full: Value = toml::from_str(FULL).expect("TOML");
    let mut places = Vec::new();
    collect(&full, "", &mut places);
    let values = [
        json!(""),
        json!("x"),
        json!("default"),
        json!("exempt"),
        json!("unlimited"),
        json!("shadow"),
        json!("local"),
        json!("member:user"),
        json!("2/s"),
        json!("0/s"),
        json!("/a"),
        json!(-1),
        json!(0),
        json!(1),
        json!(300),
        json!(0.5),
        json!(1.5),
        json!(2_000_000_000_000_u64),
        json!(true),
        json!([]),
        json!(["/a"]),
        json!({}),
        json!({ "capacity": 5, "rate": 1 }),
        json!({ "quota": "5/s" }),
        json!({ "refil": 1 }),
    ];
    let keys = ["", "refil", "Name", "with space", "/b", "POST /b", "/:b"];
    let mut count = 0;
    for place in &places {
        let changes = values.iter().map(|value| (None, value));
        let own = full.pointer(place).expect("a place");
        let additions = keys.iter().map(|key| (Some(*key), own));
        for (key, value) in changes.chain(additions) {
            let mut changed = full.clone();
            let at = match key {
                None => place.clone(),
                Some(_) => place.rsplit_once('/').expect("a parent").0.to_owned(),
            };
            let slot = changed.pointer_mut(&at).expect("a place");
            match (key, slot) {
                (None, slot) => *slot = value.clone(),
                (Some(key), Value::Object(table)) => {
                    table.insert(key.to_owned(), value.clone());
                }
                _ => continue,
            }
            assert_agreement(&validator, &toml::to_string(&changed).expect("TOML"));
            count += 1;
        }
    }
    assert!(count > 1_000, "{count}");
}

/// The places of all values within `value`, as JSON pointers.
fn collect(value: &Value, place: &str, places: &mut Vec<String>) {
    let mut visit = |key: &str, value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        let place = format!("{place}/{key}");
        places.push(place.clone());
        collect(value, &place, places);
    };
    match value {
        Value::Object(table) => table.iter().for_each(|(key, value)| visit(key, value)),
        Value::Array(list) => {
            let list = list.iter().enumerate();
            list.for_each(|(i, value)| visit(&i.to_string(), value));
        }
        _ => {}
    }
}

#[test]
fn schema_and_parser_read_rates_and_routes_alike() {
    let validator = validator();
    let rates = [
        "50/s",
        "1000/m",
        "5/h",
        "1/d",
        "7/3s",
        "0.5/s",
        "1/1.5s",
        " 2/s ",
        "2 /s",
        "2/ s",
        "+5/s",
        "-5/s",
        ".5/s",
        "5./s",
        "5.0/s",
        "1e3/s",
        "1E+3/s",
        "1.5e1/s",
        "0e5/s",
        "0/s",
        "00/s",
        "0.0/s",
        "5/0s",
        "5/0.0s",
        "5/.5s",
        "5/1.2.3s",
        "1.2.3/s",
        "",
        "50",
        "50/",
        "/s",
        "50/w",
        "50/s/s",
        "five/s",
        "nan/s",
        "inf/s",
        "unlimited",
        "blocked",
        "default",
        "Unlimited",
    ];
    for rate in rates {
        let documents = [
            json!({ "limits": { "a": { "quota": rate } } }),
            json!({ "limits": { "a": { "quota": { "capacity": 1, "rate": rate } } } }),
            json!({ "limits": { "a": { "quota": "1/s" } }, "tiers": { "pro": { "a": rate } } }),
        ];
        for document in documents {
            assert_agreement(&validator, &toml::to_string(&document).expect("TOML"));
        }
    }
    let routes = [
        "/",
        "/a",
        "/a/",
        "//",
        "POST /a",
        "POST  /a",
        "post /a",
        "Post /a",
        " /a",
        "GET a",
        "a",
        "",
        "/a?b",
        "/a#b",
        "/a b",
        "/:id",
        "/a:b",
        "/*rest",
        "/a*",
        "/{id}",
        "/{id}/a",
        "/{*rest}",
        "/{*rest}/a",
        "/a{id}",
        "/{a}{b}",
        "/{",
        "/}",
        "/{}",
        "/{}/a",
        "/{*}",
        "/a/{id}/{*rest}",
        "GET /{{a}}",
        "/pkg.Reports/Export",
        "/ä",
    ];
    for route in routes {
        let mut table = Map::new();
        table.insert(route.to_owned(), json!(1));
        let documents = [
            json!({ "limits": { "a": { "quota": "1/s", "routes": [route] } } }),
            json!({ "limits": { "a": { "quota": "1/s", "costs": table.clone() } } }),
            json!({ "limits": { "a": { "quota": "1/s" } }, "routes": table }),
        ];
        for document in documents {
            assert_agreement(&validator, &toml::to_string(&document).expect("TOML"));
        }
    }
    for name in [
        "a",
        "a.b",
        "a_b-c",
        "A",
        "1",
        "_a",
        "",
        &"a".repeat(64),
        &"a".repeat(65),
    ] {
        let mut table = Map::new();
        table.insert(name.to_owned(), json!({ "quota": "1/s" }));
        let document = json!({ "limits": table });
        assert_agreement(&validator, &toml::to_string(&document).expect("TOML"));
    }
}
