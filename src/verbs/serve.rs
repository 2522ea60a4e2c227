//! `gpulimit serve`: shows GPUs, groups, processes and events over HTTP, as a page, as JSON and as
//! metrics. The server changes no limit; it cleans slots of the dead and notes GPUs in `.trail`.

mod access;
mod answer;
mod api;
mod assets;
mod connections;
mod counters;
mod exposition;
mod listen;
mod metrics;
mod peer;
mod places;
mod pressure;
mod query;
mod reading;
mod routes;
#[cfg(test)]
mod tests;
mod token;
mod worker;

use crate::figures::machines::{self, Machines};
use crate::words::failure::Failure;
use access::{Access, Scope};
use listen::Address;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `serve`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Listen here: unix:PATH, or an address of this machine and a port, such as 127.0.0.1:13900.
    /// By default a socket that only you can use
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,

    /// Ask clients for the token in this file, which only its owner may read. A link is followed if
    /// no other user can change it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Expect the token at a port or socket that other users can take. When the server is down, a
    /// user who listens there gets the token of the next client. Safe where no other user shares
    /// the network, as in a pod
    #[arg(long, requires = "token_file")]
    unprotected_port: bool,

    /// Show everybody the totals of GPUs and groups, without users, processes and commands
    #[arg(long, conflicts_with_all = ["token_file", "processes", "machines"])]
    public: bool,

    /// Accept this host name in requests, for a reverse proxy that passes it on. Repeat for more
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Add metrics for each process
    #[arg(long)]
    processes: bool,

    #[command(flatten)]
    machines: machines::Args,
}

/// How often other machines read their groups, also while nobody looks.
const EVERY: Duration = Duration::from_secs(2);

const HELP: &str = "\
Serves a page at /, metrics for Prometheus at /metrics, and JSON below /api/v1/.
The server changes no group. It shows what you may see, so by default only you
can connect: it listens at $XDG_RUNTIME_DIR/gpulimit.sock, or for root at
/run/gpulimit.sock. A TCP port is open to every user of the machine, so it needs
--token-file or --public. Clients send `Authorization: Bearer TOKEN`; a browser
opens /?token=TOKEN once. The port of a token must be one that other users
cannot take when the server ends: from systemd (gpulimit-serve.socket), or below
1024.

With --machines, the page and /api/v1/state show what `top --machines` shows.
Metrics, history and events stay those of this machine: let Prometheus scrape
each machine itself.

The server does not listen beyond this machine. Put a reverse proxy in front of
it, or forward its port: `ssh -L 13900:127.0.0.1:13900 HOST`.

Examples:
  gpulimit serve
  curl --unix-socket $XDG_RUNTIME_DIR/gpulimit.sock http://localhost/metrics
  (umask 077; head -c 24 /dev/urandom | base64 > token)
  gpulimit serve --listen 127.0.0.1:900 --token-file token
  gpulimit serve --listen 127.0.0.1:13900 --public";

/// Serves until a signal ends the server.
pub fn serve(args: Args) -> Result<ExitCode, Failure> {
    let token = args.token_file.as_deref().map(token::read).transpose()?;
    let (listener, name) = listen::listen(args.listen.as_ref())?;
    if listener.is_for_everybody() && token.is_none() && !args.public {
        return Err(Failure::usage(match listener.port {
            Some(_) => {
                "every user of this machine can connect to a TCP port: pass --token-file FILE, or \
                 --public to show only totals"
            }
            None => {
                "every user of this machine can connect to the socket from systemd: use \
                 SocketMode=0600 in the socket unit, or pass --token-file FILE, or --public to \
                 show only totals"
            }
        }));
    }
    if token.is_some()
        && !args.unprotected_port
        && let Some(why) = listener.can_be_taken()
    {
        return Err(Failure::usage(format_args!(
            "{why}: another user can listen there when the server does not, and gets the token of \
             the next client: let systemd open the port (ListenStream= in gpulimit-serve.socket), \
             use one below net.ipv4.ip_unprivileged_port_start or a socket in a directory of your \
             own, or take the risk with --unprotected-port"
        )));
    }
    let access = Access {
        token,
        port: listener.port,
        hosts: args.allow_host,
    };
    let scope = Scope {
        public: args.public,
        processes: args.processes,
    };
    let machines = Machines::start(&args.machines, EVERY);
    connections::run(listener, &name, access, scope, machines)?;
    Ok(ExitCode::SUCCESS)
}
