//! The picture of the README is what this version prints.

use std::fs;
use std::process::Command;

use gpulimit_programs::world::{self, World, finish, repository, text};

#[test]
fn the_picture_is_of_this_version() {
    let world = World::without_group(&[]);
    let mut command: Command = world.bare(&repository().join("scripts/picture"));
    command.arg("--print");
    command.arg("--controller").arg(world::controller());
    command.arg("--library").arg(world::shim());
    command.arg("--demo").arg(world::demo());
    let output = finish(command);
    let picture = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let place = repository().join("docs/terminal.svg");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&place, &picture).expect("written");
    }
    let there = fs::read_to_string(&place).expect("docs/terminal.svg");
    assert!(
        there == picture,
        "docs/terminal.svg is out of date: UPDATE=1 cargo test -p gpulimit-programs --test pages\n\
         {picture}"
    );
}
