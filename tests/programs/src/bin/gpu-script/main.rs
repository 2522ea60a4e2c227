//! Runs lines of commands against the CUDA driver API: the same program serves the simulated driver
//! and a real GPU.
//!
//! `gpu-script [--door DOOR] [--ptsz] [FILE]` reads standard input without a file. Each command is
//! answered by one line, `COMMAND = STATUS FIGURES`: status codes are the driver's, sizes are
//! bytes, and there are no addresses, so that two runs can be compared. The commands are listed in
//! `command`, the doors in `door`.

mod command;
mod door;
mod driver;
mod interpreter;
mod process;
mod size;
mod source;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut door, mut twins, mut file) = (String::from("dlsym"), false, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--door" => door = arguments.next().unwrap_or_default(),
            "--ptsz" => twins = true,
            _ => file = Some(argument),
        }
    }
    let run = || -> Result<ExitCode, String> {
        let mut source = source::Source::open(file.as_deref())?;
        let driver = driver::Driver::open(door::Door::parse(&door)?, twins)?;
        interpreter::Interpreter::new(driver).run(&mut source)
    };
    run().unwrap_or_else(|why| {
        eprintln!("gpu-script: {why}");
        ExitCode::from(2)
    })
}
