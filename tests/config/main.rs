//! The files of `config/`: units, drop-ins and tmpfiles of systemd, snippets for logins, Slurm's
//! scripts, the entry point of containers; and the file that container engines read. Tests with
//! Slurm and containers themselves are in `tests/programs/tests/sites`, tests of policies in
//! `tests/policy.rs`.

mod commands;
mod containers;
mod login;
#[path = "../groups/nothing.rs"]
mod nothing;
mod own_file_system;
mod place;
#[path = "../groups/place.rs"]
mod root;
mod slurm;
mod systemd;
