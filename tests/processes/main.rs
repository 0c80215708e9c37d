//! Ranks as processes that die, stand still, come twice or are strangers: nobody hangs, and every error names the rank.
#![cfg(target_os = "linux")]

#[path = "../support/kill.rs"]
mod kill;

mod fork;
mod idle;
mod limits;
mod midway;
mod pipeline;
mod start;
mod stop;
mod strangers;
