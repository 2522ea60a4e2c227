//! Starts processes that are members of a group and otherwise do nothing.
#![allow(unsafe_code)]

use gpulimit_group::{Member, Root};
use std::error::Error;
use std::io::{self, Read, Write};

/// Runs the command `crowd ROOT GROUP COUNT`: starts COUNT processes that join the group and sleep.
/// Prints `ready` when all have joined. The kernel kills them when this process ends.
pub fn main(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let mut next = || arguments.next().ok_or("usage: crowd ROOT GROUP COUNT");
    let (root, group, count): (_, _, u32) = (Root::at(next()?)?, next()?, next()?.parse()?);
    let (mut joined, mut said) = io::pipe()?;
    for _ in 0..count {
        // SAFETY: this process has one thread, so its child may call any function.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error().into()),
            0 => {
                // SAFETY: prctl only sets the signal that this process gets when its parent ends.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let member = Member::join(&root, &group);
                let _ = said.write_all(&[u8::from(member.is_ok())]);
                sleep();
            }
            _ => {}
        }
    }
    let mut answers = vec![0; count as usize];
    joined.read_exact(&mut answers)?;
    if answers.contains(&0) {
        return Err(format!("cannot put {count} members into the group {group}").into());
    }
    println!("ready");
    sleep()
}

fn sleep() -> ! {
    loop {
        // SAFETY: pause has no arguments and only waits for a signal.
        unsafe { libc::pause() };
    }
}
