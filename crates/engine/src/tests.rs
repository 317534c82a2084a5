//! The engine as its users see it, over a stub model that checks every call it gets.

mod failures;
mod harness;
mod requests;
mod schedules;
mod stub_runner;
