//! `gpu-judge`, which watches the machine and the ledger from outside as long as a storm lasts.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use gpulimit_programs::world::{self, World};

/// The figures of a judge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdict {
    pub looks: u64,
    /// Looks during which no memory was taken or freed.
    pub compared: u64,
    /// The least by which the ledger was ahead of the driver, in bytes.
    pub least: u64,
}

/// A running judge.
pub struct Judge {
    child: Child,
    output: BufReader<ChildStdout>,
}

fn program() -> PathBuf {
    world::program().with_file_name("gpu-judge")
}

impl Judge {
    /// Watches the world's first GPU, whose usage must never exceed `cap` bytes, with this many
    /// microseconds between two looks. The judge is at work when the function returns.
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

    /// Returns the mistake that the judge has found so far, if any.
    pub fn objection(&mut self) -> Option<String> {
        let ended = self.child.try_wait().expect("a child");
        ended.map(|status| format!("{status}: {}", self.words()))
    }

    fn words(&mut self) -> String {
        let mut words = String::new();
        self.output.read_to_string(&mut words).expect("readable");
        words
    }

    /// Ends the judge; returns its figures, or the mistake that it has found.
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
