//! Runs lines one by one, in blocks, in threads and in child processes.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::command;
use crate::driver::Driver;
use crate::process;
use crate::size;
use crate::source::Source;

type Answer = command::Answer<String>;

/// The values of names. Every thread has a copy.
#[derive(Clone, Default)]
pub struct Scope {
    pub values: HashMap<String, u64>,
    pub lists: HashMap<String, Vec<u64>>,
    pub streams: HashMap<String, u64>,
}

impl Scope {
    /// Returns the value of a name.
    pub fn value(&self, name: &str) -> Result<usize, String> {
        let value = self.values.get(name).ok_or(format!("no {name}"))?;
        Ok(*value as usize)
    }

    /// Returns the stream of this name, or the NULL stream without a name.
    pub fn stream(&self, name: Option<&str>) -> Result<usize, String> {
        match name {
            None => Ok(0),
            Some(name) => Ok(*self.streams.get(name).ok_or(format!("no {name}"))? as usize),
        }
    }
}

impl Scope {
    /// Gives the result of a call a name, whose value is null if the call failed; returns the
    /// status.
    pub fn keep(&mut self, name: &str, (status, value): (i32, u64)) -> String {
        let value = if status == 0 { value } else { 0 };
        self.values.insert(name.to_owned(), value);
        command::plain(status)
    }
}

/// Runs commands.
pub struct Interpreter {
    driver: Arc<Driver>,
    scope: Scope,
    children: Vec<i32>,
    asides: Vec<JoinHandle<Answer>>,
}

/// The words of a command.
pub struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    /// Returns the command's own name.
    pub fn name(&self) -> &'a str {
        self.0[0]
    }

    /// Returns a word that must be there.
    pub fn at(&self, index: usize) -> Result<&'a str, String> {
        self.0
            .get(index)
            .copied()
            .ok_or(format!("{}: more words", self.0[0]))
    }

    /// Returns a word that may be there.
    pub fn get(&self, index: usize) -> Option<&'a str> {
        self.0.get(index).copied()
    }

    /// Returns a size.
    pub fn size(&self, index: usize) -> Result<usize, String> {
        Ok(size::parse(self.at(index)?)? as usize)
    }

    /// Returns a GPU's ordinal; the first GPU if none is named.
    pub fn gpu(&self, index: usize) -> Result<usize, String> {
        match self.get(index) {
            None => Ok(0),
            Some(text) => text
                .parse::<i32>()
                .map(|gpu| gpu as usize)
                .map_err(|_| format!("no GPU {text}")),
        }
    }
}

impl Interpreter {
    /// Makes an interpreter without any names.
    pub fn new(driver: Driver) -> Interpreter {
        Interpreter {
            driver: Arc::new(driver),
            scope: Scope::default(),
            children: Vec::new(),
            asides: Vec::new(),
        }
    }

    /// Runs a whole script.
    pub fn run(mut self, source: &mut Source) -> Result<ExitCode, String> {
        Ok(ExitCode::from(self.play(source)?))
    }

    /// Runs a whole script and returns its exit code.
    fn play(&mut self, source: &mut Source) -> Result<u8, String> {
        while let Some(line) = source.next() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[0] == "exit" {
                let code = words.get(1).and_then(|code| code.parse().ok());
                return Ok(code.unwrap_or(0));
            }
            self.step(&line, source)?;
        }
        for child in std::mem::take(&mut self.children) {
            process::wait(child);
        }
        Ok(0)
    }

    /// Forks a process that runs another script in the same way, with exit handlers at its end;
    /// returns the pid.
    fn spawn(&mut self, script: &str, log: &str) -> i32 {
        process::spawn(script, log, || {
            let code = self.play(&mut Source::Input).unwrap_or_else(|why| {
                eprintln!("gpu-script: {why}");
                2
            });
            i32::from(code)
        })
    }

    /// Runs the lines in a child process; its exit code is 0 if the script has no mistake.
    fn child(&mut self, lines: Vec<String>) -> i32 {
        let mut source = Source::from(lines);
        while let Some(line) = source.next() {
            if let Some(code) = line.strip_prefix("exit ") {
                return code.parse().unwrap_or(0);
            }
            if let Err(why) = self.step(&line, &mut source) {
                eprintln!("gpu-script: {why}");
                return 2;
            }
        }
        0
    }

    fn step(&mut self, line: &str, source: &mut Source) -> Result<(), String> {
        let shown = line.trim_end_matches('{').trim_end();
        let words = Words(shown.split_whitespace().collect());
        let answer = match words.0[0] {
            "threads" => threads(&self.driver, &self.scope, words.size(1)?, source.block()?)?,
            "aside" => {
                let lines = source.block()?;
                self.asides.push(aside(&self.driver, &self.scope, lines));
                "0".to_owned()
            }
            "await" => {
                let asides = std::mem::take(&mut self.asides).into_iter();
                let answers: Result<Vec<String>, String> = asides
                    .map(|thread| thread.join().unwrap_or(Err("a thread died".into())))
                    .collect();
                answers?.join(", ")
            }
            "fork" => {
                let lines = source.block()?;
                let pid = process::fork(|| self.child(lines));
                process::wait(pid).to_string()
            }
            "background" => {
                let lines = source.block()?;
                let pid = process::fork(|| self.child(lines));
                self.children.push(pid);
                "0".to_owned()
            }
            "join" => {
                let codes: Vec<_> = std::mem::take(&mut self.children)
                    .into_iter()
                    .map(|pid| process::wait(pid).to_string())
                    .collect();
                codes.join(" ")
            }
            "spawn" => self.spawn(words.at(1)?, words.at(2)?).to_string(),
            "reap" => process::reap(),
            "exec" => {
                process::write_line("exec = 0");
                process::exec();
                return Err("exec failed".into());
            }
            "repeat" | "until" => {
                let again = again(&words)?;
                repeat(&self.driver, &mut self.scope, again, &source.block()?)?
            }
            _ => command::run(&self.driver, &mut self.scope, &words)?,
        };
        process::write_line(&format!("{shown} = {answer}"));
        Ok(())
    }
}

/// Runs the lines in a thread of their own.
fn aside(driver: &Arc<Driver>, scope: &Scope, lines: Vec<String>) -> JoinHandle<Answer> {
    let (driver, mut scope) = (Arc::clone(driver), scope.clone());
    let (_, context) = driver.get("cuCtxGetCurrent", &[]);
    std::thread::spawn(move || {
        driver.call("cuCtxSetCurrent", &[context as usize]);
        repeat(&driver, &mut scope, times(1), &lines)
    })
}

/// Runs the lines in this many threads at once; returns the answers by thread.
fn threads(driver: &Driver, scope: &Scope, count: usize, lines: Vec<String>) -> Answer {
    let (_, context) = driver.get("cuCtxGetCurrent", &[]);
    let run = || -> Answer {
        let mut scope = scope.clone();
        driver.call("cuCtxSetCurrent", &[context as usize]);
        repeat(driver, &mut scope, times(1), &lines)
    };
    let answers: Result<Vec<String>, String> = std::thread::scope(|threads| {
        let running: Vec<_> = (0..count).map(|_| threads.spawn(run)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err("a thread died".into())))
            .collect()
    });
    Ok(answers?.join(", "))
}

/// Says before each round of a block whether the round runs.
type Again = Box<dyn FnMut() -> bool>;

/// Returns an [`Again`] for this many rounds.
fn times(count: usize) -> Again {
    let mut rounds = 0..count;
    Box::new(move || rounds.next().is_some())
}

/// Returns the [`Again`] of `repeat N` or `until FILE`.
fn again(words: &Words<'_>) -> Result<Again, String> {
    if words.name() == "repeat" {
        return Ok(times(words.size(1)?));
    }
    let file = PathBuf::from(words.at(1)?);
    Ok(Box::new(move || !file.exists()))
}

/// Runs the lines again and again; returns the count of each status, such as `0:40 2:3`.
fn repeat(driver: &Driver, scope: &mut Scope, mut again: Again, lines: &[String]) -> Answer {
    let mut statuses = BTreeMap::<String, u64>::new();
    while again() {
        let mut source = Source::from(lines.to_vec());
        while let Some(line) = source.next() {
            let words = Words(line.trim_end_matches('{').split_whitespace().collect());
            if ["repeat", "until"].contains(&words.name()) {
                let inner = repeat(driver, scope, self::again(&words)?, &source.block()?)?;
                for part in inner.split(' ') {
                    let (status, times) = part.split_once(':').unwrap_or((part, "1"));
                    *statuses.entry(status.to_owned()).or_default() += times.parse().unwrap_or(0);
                }
                continue;
            }
            let answer = command::run(driver, scope, &words)?;
            let status = answer.split(' ').next().unwrap_or_default().to_owned();
            *statuses.entry(status).or_default() += 1;
        }
    }
    let parts: Vec<_> = statuses
        .into_iter()
        .map(|(status, times)| format!("{status}:{times}"))
        .collect();
    Ok(parts.join(" "))
}
