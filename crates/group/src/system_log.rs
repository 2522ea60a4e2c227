//! Lines in the system log about killed processes, as the kernel's OOM killer writes them.

use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// The socket of the system log (syslog(3)), where there is one.
const SOCKET: &str = "/dev/log";
/// The facility "user" and the severity "warning", as in RFC 3164.
const PRIORITY: u32 = 1 << 3 | 4;

/// Writes a line to the system log. The line is lost where there is no log, and if the log cannot
/// take it at once. Never waits.
pub fn warn(line: fmt::Arguments<'_>) {
    let _ = send(Path::new(SOCKET), line);
}

fn send(log: &Path, line: fmt::Arguments<'_>) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let text = format!("<{PRIORITY}>gpulimit[{}]: {line}", std::process::id());
    socket.send_to(text.as_bytes(), log).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;

    #[test]
    fn a_line_reaches_the_log_and_a_full_log_is_not_waited_for() {
        let scratch = Scratch::new();
        let path = scratch.at("log");
        send(&path, format_args!("lost")).expect_err("there is no log");
        let log = UnixDatagram::bind(&path).expect("bound");
        send(&path, format_args!("killing pid {}", 7)).expect("sent");
        let mut bytes = [0; 100];
        let length = log.recv(&mut bytes).expect("received");
        let expected = format!("<12>gpulimit[{}]: killing pid 7", std::process::id());
        assert_eq!(str::from_utf8(&bytes[..length]), Ok(&*expected));
        // Nobody reads the log, which is soon full.
        let full = (0..100_000).find_map(|_| send(&path, format_args!("more")).err());
        assert_eq!(full.expect("full").kind(), io::ErrorKind::WouldBlock);
    }
}
