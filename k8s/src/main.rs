//! `gpulimit-k8s-device-plugin`, the program behind `gpulimit k8s-device-plugin`.

use clap::Parser;
use gpulimit_k8s::{node, options::Options, say};
use std::process::ExitCode;

fn main() -> ExitCode {
    match node::run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            say(text);
            ExitCode::FAILURE
        }
    }
}
