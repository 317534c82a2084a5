//! The engine as its users see it: over a stub model that checks every call it gets, and over the
//! random pair of the fixtures.

mod cached_pair;
mod cached_prompts;
mod constrained_pair;
mod constraints;
mod costless;
mod failures;
mod fixture_pair;
mod giving_way;
mod harness;
mod prefix_cache;
mod queue;
mod requests;
mod schedules;
mod simulation;
mod single;
mod stub_contract;
mod stub_gate;
mod stub_memory;
mod stub_runner;
mod traces;

pub(crate) use harness::request;
