//! The order of the rows of `ps`: the options `--sort` and `--reverse`.

use super::users::Use;
use crate::figures::processes::Process;
use crate::machine::accounts;
use crate::words::failure::Failure;
use crate::words::order::{self, Direction};

/// The options for the order of rows.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Sort the rows: pids and names from small to large, figures from large to small
    #[arg(long, value_name = "KEY", value_enum)]
    sort: Option<Key>,

    /// Reverse the order of --sort; unknown figures stay last
    #[arg(long, requires = "sort")]
    reverse: bool,
}

#[derive(Copy, Clone, clap::ValueEnum)]
enum Key {
    Pid,
    User,
    Group,
    Total,
    Waited,
}

impl Key {
    const fn direction(self) -> Direction {
        match self {
            Self::Pid | Self::User | Self::Group => Direction::Up,
            Self::Total | Self::Waited => Direction::Down,
        }
    }
}

impl Args {
    /// Sorts processes. Rows with equal figures stay sorted by group and pid.
    pub fn sort(&self, rows: &mut [Process]) {
        let Some(key) = self.sort else {
            return;
        };
        let direction = key.direction().reversed(self.reverse);
        match key {
            Key::Pid => order::sort(rows, direction, |row| row.pid),
            Key::User => order::sort(rows, direction, |row| Some(accounts::user_name(row.uid))),
            Key::Group => order::sort(rows, direction, |row| {
                let names = row.group.split('/').map(str::to_owned);
                Some(names.collect::<Vec<_>>())
            }),
            Key::Total => order::sort(rows, direction, |row| Some(row.gpu.as_ref()?.1.total)),
            Key::Waited => order::sort(rows, direction, |row| Some(row.waits.as_ref()?.waited())),
        }
    }

    /// Fails if the key is not one of users.
    pub fn check_for_users(&self) -> Result<(), Failure> {
        match self.sort {
            Some(Key::Pid | Key::Group) => Err(Failure::usage(
                "--by user has no pids and groups: sort by user, total or waited",
            )),
            _ => Ok(()),
        }
    }

    /// Sorts the figures of users. Rows with equal figures stay sorted by user and GPU.
    pub fn sort_users(&self, rows: &mut [Use]) {
        let Some(key) = self.sort else {
            return;
        };
        let direction = key.direction().reversed(self.reverse);
        match key {
            Key::Total => order::sort(rows, direction, |row| row.total),
            Key::Waited => order::sort(rows, direction, |row| row.waited),
            Key::User | Key::Pid | Key::Group => {
                order::sort(rows, direction, |row| Some(row.user.clone()));
            }
        }
    }
}
