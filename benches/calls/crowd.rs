//! Processes that are members of a group and do nothing.
#![allow(unsafe_code)]

use gpulimit_group::{Member, Root};
use std::error::Error;
use std::io::{self, Read, Write};

/// `crowd ROOT GROUP COUNT` forks so many, says `ready` when all have joined, and sleeps. They end
/// with it.
pub fn main(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let mut next = || arguments.next().ok_or("crowd ROOT GROUP COUNT");
    let (root, group, count): (_, _, u32) = (Root::at(next()?)?, next()?, next()?.parse()?);
    let (mut joined, mut said) = io::pipe()?;
    for _ in 0..count {
        // SAFETY: this process has one thread, so its child may do anything.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error().into()),
            0 => {
                // SAFETY: sets what happens to this process when its parent ends.
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
        return Err(format!("no place in {group} for {count} members").into());
    }
    println!("ready");
    sleep()
}

fn sleep() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}
