//! `gpulimit-k8s-device-plugin`, the device plugin of Kubernetes.

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
