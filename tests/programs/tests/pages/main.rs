//! Runs the commands of the pages on the simulated driver, and compares their output with the
//! pages. See tests/README.md.

mod compare;
mod machine;
mod page;

use machine::Machine;
use page::{Block, Page};
use std::collections::BTreeMap;

/// Runs the marked blocks of a page in order; the blocks of each mark have a machine of their own.
#[track_caller]
fn follow(path: &str) -> usize {
    let page = Page::read(path);
    let mut machines: BTreeMap<&str, Machine> = BTreeMap::new();
    let mut count = 0;
    for block in page.blocks() {
        let (Block::Run { on, .. } | Block::File { on, .. }) = block else {
            continue;
        };
        if !machines.contains_key(on.as_str()) {
            let Some(machine) = Machine::new(on) else {
                return 0;
            };
            machines.insert(on, machine);
        }
        let machine = machines.get_mut(on.as_str()).expect("there");
        count += machine.follow(path, block);
    }
    count
}

#[test]
fn commands_of_the_readme_print_what_it_shows() {
    let page = Page::read("README.md");
    let silent: Vec<_> = page
        .blocks()
        .filter(|block| matches!(block, Block::Unmarked { .. }))
        .collect();
    assert!(
        silent.is_empty(),
        "neither run nor said why not: {silent:#?}"
    );
    let count = follow("README.md");
    assert!(count == 0 || count >= 15, "{count} commands");
}
