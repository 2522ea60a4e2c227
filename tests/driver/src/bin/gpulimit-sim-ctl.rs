//! The command `gpulimit-sim-ctl`, which shows the GPU memory that processes really use, and
//! changes knobs.

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::machine::{BLOCK, Machine, remove_state};
use gpulimit_sim::{device, grant, host, process};

const USAGE: &str = "usage: gpulimit-sim-ctl usage | reset-peak | knob NAME VALUE | remove
  usage       print the usage of every GPU and process as JSON
  reset-peak  reset the peaks to the present usage
  knob        change a setting, also while programs run
  remove      remove the machine's state file";

fn usage(machine: &Machine) -> String {
    let holders = process::holders(machine);
    let devices: Vec<String> = (0..device::count(machine))
        .map(|index| {
            let processes: Vec<String> = holders
                .iter()
                .filter(|holder| holder.held[index] > 0)
                .map(|holder| {
                    format!(
                        "{{\"pid\":{},\"bytes\":{},\"namespace\":{},\"dying\":{}}}",
                        holder.pid, holder.held[index], holder.namespace, holder.dying
                    )
                })
                .collect();
            format!(
                "{{\"uuid\":\"{}\",\"capacity\":{},\"used\":{},\"peak\":{},\"processes\":[{}]}}",
                device::full_name(machine, index),
                device::capacity(machine, index),
                grant::used(machine, index) * BLOCK,
                grant::peak(machine, index) * BLOCK,
                processes.join(",")
            )
        })
        .collect();
    format!(
        "{{\"lag_ms\":{},\"host\":{},\"overruns\":{},\"devices\":[{}]}}",
        machine.knobs.kill_lag.load(Relaxed),
        host::used(machine),
        machine.knobs.overruns.load(Relaxed),
        devices.join(",")
    )
}

fn run(arguments: &[&str]) -> Result<(), String> {
    let machine = || Machine::get().map_err(|error| error.to_string());
    match arguments {
        ["usage"] => println!("{}", usage(machine()?)),
        ["reset-peak"] => {
            let machine = machine()?;
            (0..device::count(machine)).for_each(|index| grant::reset_peak(machine, index));
        }
        ["knob", name, value] => machine()?.knobs.set(name, value)?,
        ["remove"] => remove_state(),
        _ => return Err(USAGE.to_owned()),
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
