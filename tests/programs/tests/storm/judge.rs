//! `gpu-judge`, which looks at the machine and the ledger from outside as long as a storm lasts.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use gpulimit_programs::world::{self, World};

/// How often a judge looked, and what it saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdict {
    pub looks: u64,
    /// Looks in which nothing was taken or given back.
    pub compared: u64,
    /// The least by which the ledger was ahead of the driver, in bytes.
    pub least: u64,
}

/// A judge at work.
pub struct Judge {
    child: Child,
    output: BufReader<ChildStdout>,
}

fn program() -> PathBuf {
    world::program().with_file_name("gpu-judge")
}

impl Judge {
    /// Watches the world's first GPU, which must never have more than `cap` bytes in use, with so
    /// many microseconds between two looks. It is at work when this returns.
    pub fn watch(world: &World, cap: u64, pause: u64) -> Judge {
        let mut command: Command = world.bare(&program());
        command
            .arg(world.group().ledger_path())
            .args([cap.to_string(), pause.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the judge starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut word = String::new();
        output.read_line(&mut word).expect("readable");
        assert_eq!(word, "looking\n");
        Judge { child, output }
    }

    /// What it has against the storm so far.
    pub fn objection(&mut self) -> Option<String> {
        let ended = self.child.try_wait().expect("a child of ours");
        ended.map(|status| format!("{status}: {}", self.words()))
    }

    fn words(&mut self) -> String {
        let mut words = String::new();
        self.output.read_to_string(&mut words).expect("readable");
        words
    }

    /// Its verdict; the objection if it has one.
    pub fn end(mut self) -> Result<Verdict, String> {
        drop(self.child.stdin.take());
        let words = self.words();
        let status = self.child.wait().expect("it ends");
        let numbers: Vec<u64> = words
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [looks, compared, least, _] if status.success() => Ok(Verdict {
                looks,
                compared,
                least,
            }),
            _ => Err(format!("{status}: {words}")),
        }
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
