//! The source of commands: a file, or standard input read byte by byte, so that the lines after an
//! `exec` are left for the next program.

/// Lines of a script.
pub enum Source {
    /// The lines of a file.
    Lines(std::vec::IntoIter<String>),
    /// Standard input.
    Input,
}

impl Source {
    /// Opens the file, or standard input.
    pub fn open(file: Option<&str>) -> Result<Source, String> {
        let Some(path) = file else {
            return Ok(Source::Input);
        };
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        Ok(Source::Lines(
            text.lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .into_iter(),
        ))
    }

    fn line(&mut self) -> Option<String> {
        match self {
            Source::Lines(lines) => lines.next(),
            Source::Input => {
                let (mut line, mut byte) = (Vec::new(), [0]);
                loop {
                    match crate::process::read_input(&mut byte) {
                        0 if line.is_empty() => return None,
                        0 => break,
                        _ if byte[0] == b'\n' => break,
                        _ => line.push(byte[0]),
                    }
                }
                Some(String::from_utf8_lossy(&line).into_owned())
            }
        }
    }

    /// Returns the next command, without comments and empty lines.
    pub fn next(&mut self) -> Option<String> {
        loop {
            let line = self.line()?;
            let command = line.split('#').next().unwrap_or_default().trim();
            if !command.is_empty() {
                return Some(command.to_owned());
            }
        }
    }

    /// Returns the lines up to the brace that closes the current block.
    pub fn block(&mut self) -> Result<Vec<String>, String> {
        let (mut lines, mut depth) = (Vec::new(), 1);
        loop {
            let line = self.next().ok_or("a block without an end")?;
            depth += i32::from(line.ends_with('{')) - i32::from(line == "}");
            if depth == 0 {
                return Ok(lines);
            }
            lines.push(line);
        }
    }
}

impl From<Vec<String>> for Source {
    fn from(lines: Vec<String>) -> Source {
        Source::Lines(lines.into_iter())
    }
}
