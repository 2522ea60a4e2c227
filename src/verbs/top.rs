//! `gpulimit top`: shows GPUs, groups and processes, and goes on showing them.

mod actions;
mod bars;
mod frame;
mod look;
mod pages;
mod plain;
mod prompt;
mod reader;
mod round;
mod rows;
#[cfg(test)]
mod sample;
mod tables;
mod view;

use crate::figures::machines::{self, Machines};
use crate::groups::{self, Purpose, Selection, gpu};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output::{self, Reader as Pipe};
use crate::shown::screen::{self, Screen};
use crate::shown::{terminal, watch};
use crate::words::failure::Failure;
use frame::Scene;
use gpulimit_limits::Selector;
use jiff::tz::TimeZone;
use look::Look;
use ratatui::crossterm::event::{Event as Input, KeyEventKind};
use reader::{Ask, Reader, Source};
use round::{Name, Round};
use rows::{Choice, Sort};
use signal_hook::consts::signal::SIGCONT;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use view::{Act, Seen, View};

/// Options of `top`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only this group and the groups below it
    #[arg(conflicts_with = "machines")]
    group: Option<String>,

    #[command(flatten)]
    machines: machines::Args,

    /// Seconds between two rounds, at least 0.1
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// What to sort by; groups are sorted below their parent
    #[arg(long, value_name = "COLUMN", default_value = "usage")]
    sort: Sort,

    /// Show only rows with this text in a name or a command
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Show also groups without processes and memory
    #[arg(long)]
    idle: bool,

    /// Show only processes of this user, by name or number, and their groups
    #[arg(long, value_name = "USER", conflicts_with = "machines")]
    user: Option<String>,

    /// Hide the groups below this group; without a name, below all groups. Repeat for more
    #[arg(
        long,
        value_name = "GROUP",
        conflicts_with = "machines",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    fold: Vec<String>,

    /// Show only this GPU: index, UUID, start of the UUID, PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU", conflicts_with = "machines")]
    devices: Vec<String>,

    /// Take away the keys that change limits and send signals
    #[arg(long)]
    readonly: bool,

    /// Print one round as plain text
    #[arg(long)]
    once: bool,

    /// Print rounds as plain text until interrupted
    #[arg(long, conflicts_with = "once")]
    batch: bool,

    /// Print each round as JSON, an object on each line; with --once only one
    #[arg(long, conflicts_with = "batch")]
    json: bool,

    /// Print rounds for `--machines` of another machine
    #[arg(long, hide = true, conflicts_with_all = ["batch", "json", "machines"])]
    rounds: bool,
}

const HELP: &str = "\
Press ? for the keys. A bar for each GPU shows the top groups, the memory
outside all groups, and what is free. `gpulimit top` only reads, except for the
keys s (set a limit), K (send a signal) and S (suspend, resume), which ask
first. If the output is not a terminal, it prints one round. Without a UTF-8
locale it draws with ASCII, and with NO_COLOR or on a monochrome terminal
without colours.

Examples:
  gpulimit top
  gpulimit top lab --readonly --interval 5
  gpulimit top --once --sort usage
  gpulimit top --machines lab1,lab2,localhost
  gpulimit top --json | jq '.gpus[] | [.index, .used]'";

/// The width of plain text that goes to no terminal.
const WIDTH: u16 = 80;

fn seconds(text: &str) -> Result<Duration, &'static str> {
    const WHY: &str = "expected seconds, from 0.1 to 86400";
    let text = text.strip_suffix('s').unwrap_or(text);
    let seconds: f64 = text.parse().map_err(|_| WHY)?;
    match seconds {
        0.1..=86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(WHY),
    }
}

/// Shows the rounds.
pub fn top(args: &Args) -> Result<ExitCode, Failure> {
    let view = view(args)?;
    if terminal::takes_screen() && !args.once && !args.batch && !args.json && !args.rounds {
        return Program::new(args, view)?.run();
    }
    print(args, &view)
}

/// Returns the state for the options.
fn view(args: &Args) -> Result<View, Failure> {
    let driver = (!args.devices.is_empty())
        .then(|| Driver::load().ok())
        .flatten();
    let gpus = gpu::shown(&args.devices, driver.as_ref())?;
    let gpus = gpus.into_iter().filter_map(|selector| match selector {
        Selector::Device(id) => Some(id),
        Selector::All => None,
    });
    let user = match &args.user {
        Some(user) => match accounts::user_id(user) {
            Some(uid) => accounts::user_name(uid),
            None => return Err(Failure::usage(format_args!("there is no user '{user}'"))),
        },
        None => String::new(),
    };
    // The group must exist at the start. It may go later, and come back.
    Selection::of(args.group.as_deref())?;
    let folded = args.fold.iter().filter(|name| !name.is_empty());
    let folded = folded.map(|name| {
        let group = groups::find(name, Purpose::Use)?;
        Ok(Name::new(group.root(), group.name()))
    });
    let choice = Choice {
        sort: args.sort,
        inverted: false,
        filter: args.filter.clone().unwrap_or_default(),
        user,
        gpus: gpus.collect(),
        folded: folded.collect::<Result<_, Failure>>()?,
        fold_all: args.fold.iter().any(String::is_empty),
        idle: args.idle,
    };
    Ok(View {
        choice,
        interval: args.interval,
        readonly: args.readonly || !args.machines.machines.is_empty(),
        ..View::default()
    })
}

/// Prints rounds to standard output: as JSON, or as plain text.
fn print(args: &Args, view: &View) -> Result<ExitCode, Failure> {
    let mut machines = Machines::start(&args.machines, args.interval);
    machines.iter_mut().for_each(Machines::wait);
    let mut source = Source::new(args.group.clone(), machines);
    let is_last = !(args.batch || (args.json || args.rounds) && !args.once);
    let (zone, look) = (TimeZone::system(), Look::of_terminal());
    let plain = |round: &Round| {
        let scene = Scene {
            round,
            view,
            stuck: None,
            zone: &zone,
            look,
        };
        plain::lines(&scene, width()).join("\n")
    };
    let (mut gap, mut printed) = ("", Vec::new());
    loop {
        let began = Instant::now();
        let read = source.read(None);
        // A message is printed only if it differs from that of the round before.
        if let Ok(round) = &read
            && round.notes.lines != printed
        {
            output::notes(&round.notes.lines);
            printed.clone_from(&round.notes.lines);
        }
        let status = match &read {
            Ok(round) => round.notes.status(),
            Err(_) => ExitCode::FAILURE,
        };
        let text = match read {
            read if args.rounds => Round::written(&read)?,
            Err(failure) if is_last => return Err(failure),
            Err(failure) if args.json => watch::json_of(&failure).to_string(),
            Ok(round) if args.json => {
                let shows = |gpu| view.choice.shows(Some(gpu));
                round.json(source.driver(), shows).to_string()
            }
            Err(failure) => format!("{gap}{}", plain(&Round::failed(&failure))),
            Ok(round) => format!("{gap}{}", plain(&source.shown(round))),
        };
        gap = "\n";
        let text = text + "\n";
        if output::write(&text)? == Pipe::Gone || is_last {
            return Ok(status);
        }
        thread::sleep(args.interval.saturating_sub(began.elapsed()));
    }
}

/// Returns the width of standard output in columns. Narrow terminals wrap lines that tables need.
fn width() -> u16 {
    let width = terminal::output_width().and_then(|width| u16::try_from(width).ok());
    width.map_or(WIDTH, |width| width.max(frame::LEAST_WIDTH))
}

/// Something that the screen reacts to.
enum Event {
    Input(Option<Input>),
    Round(Box<Round>),
    /// What an action said.
    Done(String),
    Signal(i32),
}

/// The program on a terminal.
struct Program {
    view: View,
    seen: Seen,
    round: Round,
    reader: Reader,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    screen: Screen,
    look: Look,
    zone: TimeZone,
}

/// After this time without an answer the screen says so.
const STUCK: Duration = Duration::from_secs(5);
/// How often the screen looks whether there is an answer.
const TICK: Duration = Duration::from_secs(1);

impl Program {
    fn new(args: &Args, view: View) -> Result<Self, Failure> {
        let (sender, events) = mpsc::channel();
        let (news, input, signals) = (sender.clone(), sender.clone(), sender.clone());
        let tell = move |round| news.send(Event::Round(Box::new(round))).is_ok();
        let machines = Machines::start(&args.machines, args.interval);
        let reader = Reader::start(args.group.clone(), machines, args.interval, tell)?;
        screen::watch_signals(move |signal| _ = signals.send(Event::Signal(signal)))?;
        let screen = Screen::open()?;
        screen::watch_input(move |event| _ = input.send(Event::Input(event)))?;
        Ok(Self {
            view,
            seen: Seen::default(),
            round: Round::without("reading the groups".into()),
            reader,
            events,
            sender,
            screen,
            look: Look::of_terminal(),
            zone: TimeZone::system(),
        })
    }

    fn run(mut self) -> Result<ExitCode, Failure> {
        loop {
            if Screen::is_lost() {
                return Err(Failure::new("a part of the program has failed"));
            }
            self.draw()?;
            let mut next = match self.events.recv_timeout(TICK) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::SUCCESS),
            };
            // A frame shows all that has happened so far.
            while let Some(event) = next {
                if let Some(status) = self.take(event)? {
                    return Ok(status);
                }
                next = self.events.try_recv().ok();
            }
        }
    }

    /// Returns for how long there has been no answer, if that is unusual.
    fn stuck(&self) -> Option<Duration> {
        let time = self.reader.reads_for()?;
        (time >= STUCK).then_some(time)
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let scene = Scene {
            round: &self.round,
            view: &self.view,
            stuck: self.stuck(),
            zone: &self.zone,
            look: self.look,
        };
        let mut seen = Seen::default();
        self.screen
            .draw(|buffer| seen = frame::draw(&scene, buffer))?;
        self.seen = seen;
        (self.view.offsets, self.view.scroll) = (seen.offsets, seen.scroll);
        Ok(())
    }

    /// Reacts to an event. Returns the exit status at the end.
    fn take(&mut self, event: Event) -> Result<Option<ExitCode>, Failure> {
        match event {
            Event::Round(round) => self.round = *round,
            Event::Done(said) => {
                self.view.message = said;
                self.reader.ask(Ask::Now);
            }
            // Terminals of some systems also tell of released keys.
            Event::Input(Some(Input::Key(key))) if key.kind != KeyEventKind::Release => {
                let act = self.view.key(key, &self.round, self.seen.page);
                return act.map_or(Ok(None), |act| self.act(act));
            }
            Event::Input(Some(Input::Mouse(mouse))) => {
                let act = self.view.mouse(mouse, &self.round, &self.seen);
                return act.map_or(Ok(None), |act| self.act(act));
            }
            Event::Input(Some(Input::Paste(text))) => self.view.paste(&text),
            // The next frame has the terminal's new size.
            Event::Input(Some(_)) => {}
            Event::Input(None) => return Ok(Some(ExitCode::SUCCESS)),
            Event::Signal(SIGCONT) => self.screen.reopen()?,
            Event::Signal(signal) => self.obey(signal)?,
        }
        Ok(None)
    }

    fn obey(&mut self, signal: i32) -> Result<(), Failure> {
        self.screen.obey(signal)?;
        self.screen.reopen()
    }

    fn act(&mut self, act: Act) -> Result<Option<ExitCode>, Failure> {
        match act {
            Act::Quit => return Ok(Some(ExitCode::SUCCESS)),
            Act::Stop => self.screen.stop()?,
            Act::Redraw => self.screen.reopen()?,
            Act::Ask(ask) => self.reader.ask(ask),
            Act::Limit(..) | Act::Signal(..) | Act::Move(..) => {
                self.view.message = "working".into();
                let done = self.sender.clone();
                let work = move || _ = done.send(Event::Done(actions::act(act)));
                screen::spawn("action", work)?;
            }
        }
        Ok(None)
    }
}
