//! The code blocks of a page, and which of them the test runs.
//!
//! `<!-- test: NAME -->` before a block runs it on the machine of that name,
//! `<!-- test: NAME, writes PATH -->` writes it to a file there, and `<!-- no test: WHY -->` skips
//! it.
//!
//! In a block with prompts (`$`, or `#` for root) the other lines are the commands' output; `…` on
//! a line of its own stands for any further lines. If a block has both prompts, alice types the
//! commands after `$`. Before a command that begins with `sleep` the test waits for all output that
//! the page shows above it. In a block without prompts every line is a command that must succeed.

use gpulimit_programs::world::repository;

/// A command of a block.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    pub text: String,
    /// The number of output lines before the command, in its block.
    pub after: usize,
    /// Whether alice types the command, in a block with commands of root.
    pub by_user: bool,
}

/// A block of code.
#[derive(Debug)]
pub enum Block {
    /// A block to run.
    Run {
        /// The machine.
        on: String,
        /// The line of the page at which the block begins.
        line: usize,
        commands: Vec<Command>,
        /// The expected output; `None` if each command must only succeed.
        says: Option<Vec<String>>,
    },
    /// A file of the machine.
    File {
        /// The machine.
        on: String,
        path: String,
        content: String,
    },
    /// A block that the page marks as not to be run.
    Skipped,
    /// A block without shell commands: a file, an answer.
    Other,
    /// A block of shell commands without a mark.
    Unmarked {
        /// The line at which the block begins.
        #[allow(dead_code, reason = "shown when a test fails")]
        line: usize,
    },
}

/// A page.
pub struct Page(Vec<Block>);

impl Page {
    /// Reads a page by its path in the repository.
    pub fn read(path: &str) -> Page {
        let text = std::fs::read_to_string(repository().join(path)).expect(path);
        Page::of(&text)
    }

    fn of(text: &str) -> Page {
        let mut blocks = Vec::new();
        let mut mark = "";
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let line = line.trim();
            let Some(language) = line.strip_prefix("```") else {
                if !line.is_empty() {
                    mark = line;
                }
                continue;
            };
            let content: Vec<&str> = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| line.trim() != "```")
                .collect();
            blocks.push(block(mark, language, number + 1, &content));
            mark = "";
        }
        Page(blocks)
    }

    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.0.iter()
    }
}

fn block(mark: &str, language: &str, line: usize, content: &[&str]) -> Block {
    if mark.starts_with("<!-- no test: ") {
        return Block::Skipped;
    }
    let on = mark
        .strip_prefix("<!-- test: ")
        .and_then(|rest| rest.strip_suffix(" -->"));
    if let Some((on, path)) = on.and_then(|on| on.split_once(", writes ")) {
        let content = content.join("\n") + "\n";
        return Block::File {
            on: on.to_owned(),
            path: path.to_owned(),
            content,
        };
    }
    if !["", "sh", "console"].contains(&language) {
        return Block::Other;
    }
    let Some(on) = on else {
        return Block::Unmarked { line };
    };
    let prompt = |line: &str| {
        line.strip_prefix("$ ")
            .or(line.strip_prefix("# "))
            .map(str::to_owned)
    };
    let (mut commands, mut says) = (Vec::new(), Vec::new());
    let has_root = content.iter().any(|line| line.starts_with("# "));
    for line in content {
        match prompt(line) {
            Some(text) => commands.push(Command {
                text,
                after: says.len(),
                by_user: has_root && line.starts_with("$ "),
            }),
            None => says.push((*line).to_owned()),
        }
    }
    let (commands, says) = match commands.is_empty() {
        true => {
            let command = |text: String| Command {
                text,
                after: 0,
                by_user: false,
            };
            (says.into_iter().map(command).collect(), None)
        }
        false => (commands, Some(says)),
    };
    Block::Run {
        on: on.to_owned(),
        line,
        commands,
        says,
    }
}

#[test]
fn blocks_are_parsed() {
    let command = |text: &str, after, by_user| Command {
        text: text.to_owned(),
        after,
        by_user,
    };
    let page = Page::of(
        "# T\n```\nls\n```\n<!-- test: a -->\n```\n$ x 1\nsaid\n# y\n```\n<!-- test: b -->\n```sh\n\
            z 1 # why\n```\n\
         <!-- no test: none here -->\n```\nw\n```\n```toml\nv = 1\n```\n",
    );
    let [
        Block::Unmarked { line: 2 },
        Block::Run {
            on, commands, says, ..
        },
        Block::Run { says: None, .. },
        Block::Skipped,
        Block::Other,
    ] = &page.0[..]
    else {
        panic!("{:#?}", page.0);
    };
    assert_eq!(
        (on.as_str(), &commands[..]),
        ("a", &[command("x 1", 0, true), command("y", 1, false)][..])
    );
    assert_eq!(says.as_deref(), Some(&["said".to_owned()][..]));
}
