//! What the labs share: replica processes of a service under load, and what each request got.

mod client;
mod end;
mod load;
mod policy;
mod profile;
mod replica;

pub use self::{
    client::Client,
    end::carry_out,
    load::{By, Load, Outcome, Sample, back, quantile},
    policy::Policy,
    profile::Profile,
    replica::{DEADLINE, REPLICAS, Replica, Role, serve, start},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
