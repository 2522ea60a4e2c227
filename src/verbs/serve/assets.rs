//! The files of the page, which are parts of the program.

use crate::figures::{Row, fields, processes, users};
use std::sync::LazyLock;

/// A file of the page.
#[derive(Clone, Copy)]
pub struct Asset {
    /// The path in addresses.
    pub path: &'static str,
    pub kind: &'static str,
    pub content: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// Lists files of the folder `page` by kind and folder. Their addresses are `/assets/` and the
/// name.
macro_rules! assets {
    ($($kind:ident $folder:literal [$($name:literal)*])*) => {
        &[
            Asset {
                path: "/",
                kind: HTML,
                content: include_bytes!("page/index.html"),
            },
            $($(Asset {
                path: concat!("/assets/", $name),
                kind: $kind,
                content: include_bytes!(concat!("page/", $folder, $name)),
            },)*)*
        ]
    };
}

const ASSETS: &[Asset] = assets! {
    SCRIPT "" [
        "app.js" "chart.js" "colours.js" "connection.js" "curves.js" "dom.js" "events.js"
        "format.js" "gpus.js" "grid.js" "groups.js" "history.js" "keys.js" "processes.js"
        "server.js" "state.js" "theme.js" "waiters.js"
    ]
    SCRIPT "vendor/" ["uPlot.iife.min.js"]
    STYLE "" ["style.css"]
    STYLE "vendor/" ["uPlot.min.css"]
    PICTURE "" ["icon.svg"]
    TEXT "vendor/" ["uPlot.LICENSE.txt"]
};

/// The path of the module that describes the columns of the page's tables.
const COLUMNS: &str = "/assets/columns.js";

/// Returns the file at this path.
pub fn at(path: &str) -> Option<Asset> {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let groups = fields::columns(Row::FIELDS);
        let processes = fields::columns(processes::FIELDS);
        let users = fields::columns(users::FIELDS);
        format!(
            "export const GROUPS = {groups};\nexport const PROCESSES = {processes};\n\
             export const USERS = {users};\n"
        )
    });
    if path == COLUMNS {
        return Some(Asset {
            path: COLUMNS,
            kind: SCRIPT,
            content: TEXT.as_bytes(),
        });
    }
    ASSETS.iter().find(|asset| asset.path == path).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    #[test]
    fn each_file_of_the_page_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/verbs/serve/page");
        let names = |folder: &Path| -> BTreeSet<String> {
            let files = fs::read_dir(folder).expect("the folder exists");
            let files = files.map(|file| file.expect("an entry").path());
            let files = files.filter(|path| path.is_file());
            files
                .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
                .collect()
        };
        let mut there = names(&folder);
        there.append(&mut names(&folder.join("vendor")));
        there.remove("index.html");
        let served = ASSETS
            .iter()
            .filter_map(|asset| asset.path.strip_prefix("/assets/"));
        assert_eq!(served.map(String::from).collect::<BTreeSet<_>>(), there);
    }
}
