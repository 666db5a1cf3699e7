//! Sends requests one way through the layer, to be counted from outside: `bench-hot-path WAY REQUESTS`.

use tollgate_hot_path::{BoxError, Way};

fn main() -> Result<(), BoxError> {
    let args: Vec<_> = std::env::args().collect();
    let [_, way, requests] = args.as_slice() else {
        return Err("bench-hot-path WAY REQUESTS".into());
    };
    let mut send = Way::of_name(way).ok_or("no such way")?.start();
    for _ in 0..requests.parse()? {
        send();
    }
    Ok(())
}
