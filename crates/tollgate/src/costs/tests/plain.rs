//! Tables written by hand, and services without a router.

use http::{Method, Request};
use tollgate_core::Cost;

use crate::costs::{CostError, Price, Resolved, RouteCosts, resolve};

fn resolved(costs: &RouteCosts, method: Method, path: &str) -> Resolved {
    let request = Request::builder().method(method).uri(path);
    resolve(Some(costs), &request.body(()).expect("a request"))
}

fn price(tokens: u32) -> Resolved {
    Resolved::Price(Cost::new(tokens))
}

#[test]
fn a_service_without_a_router_is_priced_by_its_paths() {
    let costs = RouteCosts::new()
        .set(Method::GET, "/items", 2)
        .set(Method::POST, "/items", 20)
        .set_any("/pkg.Search/Query", 5)
        .set(Method::GET, "/free", 0)
        .exempt_any("/health");
    assert_eq!(resolved(&costs, Method::GET, "/items?page=2"), price(2));
    assert_eq!(resolved(&costs, Method::HEAD, "/items"), price(2));
    assert_eq!(resolved(&costs, Method::POST, "/items"), price(20));
    assert_eq!(
        resolved(&costs, Method::POST, "/pkg.Search/Query"),
        price(5)
    );
    assert_eq!(resolved(&costs, Method::GET, "/free"), price(0));
    assert_eq!(resolved(&costs, Method::GET, "/health"), Resolved::Exempt);
    assert_eq!(
        resolved(&costs, Method::GET, "/items/"),
        Resolved::Unmatched
    );
}

#[test]
fn a_table_written_by_hand_never_claims_to_know_all_methods() {
    let costs = RouteCosts::new().set(Method::GET, "/items", 2);
    assert_eq!(resolved(&costs, Method::PUT, "/items"), Resolved::Unpriced);
}

#[test]
fn the_most_specific_prefix_wins_and_a_known_path_before_it() {
    let costs = RouteCosts::new()
        .set_under("/files", 3)
        .set_under("/files/big", 30)
        .set_under("/{tenant}", 1)
        .exempt_under("/assets/")
        .set_any("/files/one", 7);
    assert_eq!(resolved(&costs, Method::GET, "/files"), price(3));
    assert_eq!(resolved(&costs, Method::GET, "/files/x"), price(3));
    assert_eq!(resolved(&costs, Method::GET, "/files/big/x"), price(30));
    assert_eq!(resolved(&costs, Method::GET, "/files/one"), price(7));
    assert_eq!(resolved(&costs, Method::GET, "/filesystem"), price(1));
    assert_eq!(
        resolved(&costs, Method::GET, "/assets/a.css"),
        Resolved::Exempt
    );
    assert_eq!(resolved(&costs, Method::GET, "/"), Resolved::Unmatched);
    // Whoever resolves the dots serves something that is not exempt.
    for path in [
        "/assets/../x",
        "/assets/%2e%2E/x",
        "/assets/./x",
        "/assets/..",
    ] {
        let resolved = resolved(&costs, Method::GET, path);
        assert_eq!(resolved, Resolved::Unmatched, "{path}");
    }
}

#[test]
fn without_a_table_nothing_is_known() {
    let request = Request::builder()
        .uri("/items")
        .body(())
        .expect("a request");
    assert_eq!(resolve(None, &request), Resolved::NoTable);
}

#[test]
fn get_follows_the_rules_of_a_request() {
    let costs = RouteCosts::new().set(Method::GET, "/a", 1).set_any("/b", 2);
    assert_eq!(costs.get(&Method::HEAD, "/a"), Some(Price::from(1)));
    assert_eq!(costs.get(&Method::PUT, "/b"), Some(Price::from(2)));
    assert_eq!(costs.get(&Method::PUT, "/a"), None);
    assert_eq!(costs.get(&Method::GET, "/c"), None);
}

#[test]
fn a_plain_table_is_compared_with_a_capacity() {
    let costs = RouteCosts::new()
        .set(Method::POST, "/export", 101)
        .set_any("/search", 100)
        .set_under("/files", 200)
        .exempt_any("/health");
    let error = costs.check_capacity(100).expect_err("too costly");
    let CostError::AboveCapacity { routes } = &error else {
        panic!("{error}");
    };
    let names: Vec<_> = routes.iter().map(|route| route.route.as_str()).collect();
    assert_eq!(names, ["POST /export", "any /files/*"]);
    assert_eq!(routes[0].capacity, 100);
    assert_eq!(
        error.to_string(),
        "no bucket can ever hold the cost of: POST /export (101 of at most 100), any /files/* (200 of at \
         most 100); lower the cost, or raise the capacity of a tier"
    );
    assert_eq!(costs.check_capacity(200), Ok(()));
}

#[test]
#[should_panic(expected = "Overlapping costs. A price for `GET /a` already exists")]
fn two_prices_for_one_key_panic() {
    let _ = RouteCosts::new()
        .set(Method::GET, "/a", 1)
        .set(Method::GET, "/a", 1);
}

#[test]
#[should_panic(expected = "A price for everything under `/a` already exists")]
fn two_prices_for_one_prefix_panic() {
    let _ = RouteCosts::new().set_under("/a", 1).exempt_under("/a");
}

#[test]
#[should_panic(expected = "Paths must start with a `/`")]
fn a_path_without_a_slash_panics() {
    let _ = RouteCosts::new().set_any("items", 1);
}

#[test]
#[should_panic(expected = "Instead of `:id` write `{name}`")]
fn a_path_of_the_old_form_panics() {
    let _ = RouteCosts::new().set_any("/items/:id", 1);
}
