//! The files of `config/` that others run: units, drop-ins and tmpfiles of systemd, snippets for logins, Slurm's scripts. Slurm itself:
//! `tests/programs/tests/sites`; policies: `tests/policy.rs`.

mod cdi;
mod commands;
mod login;
mod place;
mod slurm;
mod systemd;
