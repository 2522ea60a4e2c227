//! Suspensions, and what other commands, shells and namespaces make of them.

use gpulimit_programs::world::{self, GROUP, Session, World};
use std::process::Command;

use crate::refused::around;
use crate::{CAP, done, finish, goes_on, holder, verb};

/// A process that waits to bring back two others, behind a third one.
struct Waiting {
    world: World,
    programs: [Session; 2],
    other: Session,
    actor: Session,
}

impl Waiting {
    fn new(wrapper: &[&str]) -> Waiting {
        let world = World::new(CAP);
        let programs = [holder(&world, "800M"), holder(&world, "800M")];
        done(&world, &["suspend", GROUP]);
        let other = holder(&world, "2000M");
        let command = verb(&world, &["resume", GROUP]);
        let mut actor = Session::start(match wrapper {
            [] => command,
            _ => around(wrapper, &command),
        });
        // It has charged the room of one process, and waits for the other's.
        assert!(world::eventually(|| world.usage(0).charged > 2800 << 20));
        assert!(actor.is_silent_for(std::time::Duration::from_millis(100)));
        Waiting {
            world,
            programs,
            other,
            actor,
        }
    }

    fn end(mut self) {
        self.other.expect(&[("free a", "0")]);
        let (status, errors) = self.actor.end();
        assert!(status.success(), "{errors}");
        self.programs.iter_mut().for_each(goes_on);
        for program in self.programs.into_iter().chain([self.other]) {
            program.end();
        }
        self.world.judge_end(CAP);
    }
}

#[test]
fn kill_signals_a_resume_that_holds_several_slots_once() {
    let waiting = Waiting::new(&[]);
    let told = done(&waiting.world, &["kill", "--signal", "CONT", GROUP]);
    let pid = waiting.actor.pid();
    let line = format!("{GROUP}: SIGCONT sent to {pid} (gpulimit)");
    let lines: Vec<&str> = told.out.lines().filter(|told| **told == line).collect();
    assert_eq!(lines.len(), 1, "{told:?}");
    assert_eq!(told.out.lines().count(), 4, "{told:?}");
    waiting.end();
}

#[test]
fn signals_that_were_ignored_at_the_start_stay_so() {
    let waiting = Waiting::new(&["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh"]);
    waiting.actor.signal(libc::SIGINT);
    waiting.actor.signal(libc::SIGHUP);
    waiting.end();
}

/// From these namespaces the kernel does not show what the process has mapped.
#[test]
fn namespaces_in_which_membership_is_not_seen_are_named() {
    if !world::may_mount() {
        return;
    }
    let world = World::new(CAP);
    let mut program = holder(&world, "100M");
    let user: &[&str] = &["unshare", "--user", "--map-root-user"];
    let pid: &[&str] = &["unshare", "--pid", "--fork", "--mount-proc"];
    let tried = Command::new(user[0]).args(&user[1..]).arg("true").output();
    let may = tried.is_ok_and(|output| output.status.success());
    let mut cases = vec![(pid, "run gpulimit in the pid namespace of the process")];
    if may {
        cases.push((user, "a security module or user namespace forbids it"));
    }
    for (namespace, why) in cases {
        for arguments in [&["suspend", GROUP][..], &["kill", GROUP]] {
            let said = finish(around(namespace, &verb(&world, arguments)));
            said.expect_failure(why);
        }
    }
    goes_on(&mut program);
    program.end();
}
