//! The files of `config/` that others run: units, drop-ins and tmpfiles of systemd, snippets for
//! logins, Slurm's scripts, the entry point of containers; and the file that container engines
//! read. Slurm and containers themselves: `tests/programs/tests/sites`; policies:
//! `tests/policy.rs`.

mod commands;
mod containers;
mod login;
mod own_file_system;
mod place;
mod slurm;
mod systemd;
