//! `gpulimit install` and `gpulimit uninstall`: make /etc/ld.so.preload load the library into every
//! program of the machine, or undo this.

use crate::machine::preload::{FILE, Preload};
use crate::machine::{file, library, trial, trust::Trusted};
use crate::shown::output::{self, Answer};
use crate::words::{failure::Failure, notes::Change};
use gpulimit_group::{Root, SYSTEM, effective_user};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `install`.
#[derive(clap::Args)]
#[command(after_help = INSTALL_HELP)]
pub struct Install {
    /// The libgpulimit.so to install [default: the one that belongs to this program]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

/// Options of `uninstall`.
#[derive(clap::Args)]
#[command(after_help = UNINSTALL_HELP)]
pub struct Uninstall {
    /// Remove only this libgpulimit.so from /etc/ld.so.preload, and keep the file itself, which
    /// belongs to a package
    #[arg(long, value_name = "FILE", conflicts_with = "prefix")]
    library: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Args)]
struct Place {
    /// The library is copied to DIR/lib/gpulimit
    #[arg(long, value_name = "DIR", default_value = "/usr/local", value_parser = file::absolute())]
    prefix: PathBuf,
    /// The root directory of the system to change, such as an image that is being built
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = file::absolute())]
    root: PathBuf,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    answer: Answer,
}

const INSTALL_HELP: &str = "\
Copies the library to a place that all programs can read, and puts its path
first into /etc/ld.so.preload, which the dynamic linker reads when it starts any
program, whatever the environment says. Other entries of that file stay. First
tests the library, and undoes everything if programs do not start with it.
Running programs are not affected. A library in a system directory is not
copied. Says which kinds of programs do not bear a preload, and what helps.

Examples:
  gpulimit install
  gpulimit install --library ./libgpulimit.so --dry-run
  gpulimit install --root /mnt/image

Exit status: 0 on success, 1 on failure, 2 for a mistake in the options.";

const UNINSTALL_HELP: &str = "\
Removes the library from /etc/ld.so.preload. Other entries of that file stay.
Removes the library's file as well, unless programs still use it; then
`uninstall` says so, and can be run again later. Keeps the library that belongs
to this program.

Examples:
  gpulimit uninstall
  gpulimit uninstall --library /usr/lib/gpulimit/libgpulimit.so
  gpulimit uninstall --root /mnt/image";

/// The programs that do not bear a preload, and what helps.
const UNFIT: &str = "\
Every program that starts from now on loads the library. These kinds do not bear that:
- for 32 bits: runs without a limit, and the dynamic linker prints a line at each start
- static, or linked to musl: runs without a limit
`gpulimit doctor PROGRAM` tells the kind of a program.
";

const NAME: &str = "libgpulimit.so";
/// The directories for libraries of packages. A libgpulimit.so in one of them is not copied.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/lib", "/usr/lib64", "/lib", "/lib64"];

impl Place {
    /// Finds the root directory. Fails if users other than root could change the path to an image.
    fn find(&mut self) -> Result<(), Failure> {
        let root = fs::canonicalize(&self.root).map_err(file::failed("open", &self.root))?;
        // Check the path as it was given: a link to / in it would lead to the running system.
        if self.root != Path::new("/") {
            trusted(Trusted::root().check(&self.root))?;
        }
        self.root = root;
        match self.is_here() {
            true => Ok(()),
            false => self.check(Path::new(FILE)),
        }
    }

    /// Refuses a path that users other than root could change. In an image, refuses symbolic links,
    /// which could lead out.
    fn check(&self, inside: &Path) -> Result<(), Failure> {
        let outside = self.outside(inside);
        trusted(if self.is_here() {
            Trusted::root().check_new(&outside)
        } else {
            Trusted::root().check_in_image(&self.root, &outside)
        })
    }

    /// Returns true if the target is the running system, false if it is an image.
    fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Turns a path inside the target system into a path of the running system.
    fn outside(&self, inside: &Path) -> PathBuf {
        self.root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Turns a path of the running system into a path inside the target system; `None` for a path
    /// outside it.
    fn inside(&self, outside: &Path) -> Option<PathBuf> {
        let below = outside.strip_prefix(&self.root).ok()?;
        Some(Path::new("/").join(below))
    }

    /// Returns the path in the target system to which libgpulimit.so is copied.
    fn library(&self) -> PathBuf {
        self.prefix.join("lib/gpulimit").join(NAME)
    }

    fn preload(&self) -> PathBuf {
        self.outside(Path::new(FILE))
    }

    /// Returns what begins the text about a change, which `--dry-run` does not make.
    fn would_be(&self) -> &'static str {
        if self.dry_run { "would be " } else { "" }
    }

    /// Prints what was done, also before a failure.
    fn end(&self, done: &[Change], result: Result<(), Failure>) -> Result<ExitCode, Failure> {
        self.answer.tell(done);
        result.map(|()| ExitCode::SUCCESS)
    }
}

fn change(file: &Path, text: impl Into<String>) -> Change {
    (file.display().to_string(), text.into())
}

/// Explains why a path failed the check that only root can change it, and adds the remedy.
fn trusted(checked: Result<(), String>) -> Result<(), Failure> {
    checked.map_err(|why| {
        Failure::new(format_args!(
            "{why}: every program of the machine would run code from that path; let only root \
             change the path (`chown root`, `chmod go-w`), replace links by directories, or name \
             another place"
        ))
    })
}

/// Installs the library.
pub fn install(args: Install) -> Result<ExitCode, Failure> {
    let mut place = args.place;
    place.find()?;
    if !place.dry_run && effective_user() != 0 {
        let why = format_args!("only root can change {FILE}: run the command as root");
        return Err(Failure::new(why));
    }
    let mut done = Vec::new();
    let result = put(args.library, &place, &mut done);
    place.end(&done, result)
}

fn put(library: Option<PathBuf>, place: &Place, done: &mut Vec<Change>) -> Result<(), Failure> {
    place.check(Path::new(FILE))?;
    place.check(Path::new(SYSTEM))?;
    place.check(&place.library())?;
    let named = library.map_or_else(library::own, Ok)?;
    let opened = std::path::absolute(&named).and_then(|path| Ok((fs::canonicalize(&path)?, path)));
    let (source, path) = opened.map_err(|error| {
        Failure::new(format_args!(
            "cannot open {}: {error}: name the library in --library",
            named.display()
        ))
    })?;
    trusted(Trusted::root().check(&path))?;
    library::check(&source)?;
    trial::with(&source)?;
    if !place.answer.json && Preload::read(&place.preload())?.state().copies.is_empty() {
        output::print(UNFIT)?;
    }
    let packaged = place.inside(&source).filter(|path| {
        SYSTEM_DIRECTORIES
            .iter()
            .any(|system| path.starts_with(system))
    });
    let target = match packaged {
        Some(path) => path,
        None => {
            let target = place.library();
            done.push(copy(place, &source, &target)?);
            target
        }
    };
    let outside = place.outside(&target);
    if outside.exists() {
        place.check(&target)?;
        trial::with(&outside)?;
    }
    done.extend(make_group_root(place)?);
    done.push(enter(place, &target)?);
    Ok(())
}

/// Copies the library to its place in the target system.
fn copy(place: &Place, source: &Path, target: &Path) -> Result<Change, Failure> {
    let outside = place.outside(target);
    let bytes = fs::read(source).map_err(file::failed("read", source))?;
    if fs::read(&outside).is_ok_and(|there| there == bytes) {
        return Ok(change(target, "is up to date"));
    }
    if !place.dry_run {
        file::make_directories(&outside)?;
        place.check(target)?;
        file::replace(&outside, &bytes, 0o755)?;
    }
    Ok(change(target, format!("{}installed", place.would_be())))
}

/// Adds the path of libgpulimit.so to /etc/ld.so.preload.
fn enter(place: &Place, target: &Path) -> Result<Change, Failure> {
    let file = Path::new(FILE);
    let path = place.preload();
    let preload = Preload::read(&path)?;
    let text = preload.with(target)?;
    if preload.text() == Some(text.as_str()) {
        return Ok(change(file, "already names the library"));
    }
    if !place.dry_run {
        let check = || match place.is_here() {
            true => trial::plain(),
            false => Ok(()),
        };
        file::change(&path, preload.text(), &text, check)?;
    }
    let effect = match place.is_here() {
        true => "programs that start from now on load the library",
        false => "gpulimit did not test whether programs of the image still start",
    };
    let would_be = place.would_be();
    Ok(change(
        file,
        format!("the library {would_be}added; {effect}"),
    ))
}

/// Makes /run/gpulimit, the system's directory of groups.
fn make_group_root(place: &Place) -> Result<Option<Change>, Failure> {
    let path = place.outside(Path::new(SYSTEM));
    if path.exists() {
        Root::at(&path)?;
        return Ok(None);
    }
    if !place.dry_run {
        file::make_directory(&path)?;
    }
    let would_be = place.would_be();
    let text = format!("{would_be}made; systemd-tmpfiles makes this directory at every boot");
    Ok(Some(change(Path::new(SYSTEM), text)))
}

/// Removes libgpulimit.so from /etc/ld.so.preload, and then deletes the library's file.
pub fn uninstall(args: Uninstall) -> Result<ExitCode, Failure> {
    let mut place = args.place;
    place.find()?;
    let mut done = Vec::new();
    let result = remove(args.library.as_deref(), &place, &mut done);
    place.end(&done, result)
}

fn remove(only: Option<&Path>, place: &Place, done: &mut Vec<Change>) -> Result<(), Failure> {
    let (file, path) = (Path::new(FILE), place.preload());
    let preload = Preload::read(&path)?;
    let without = match only {
        Some(library) => preload.without(&|path| path == library),
        None => preload.without(&library::is_library),
    };
    let text = match &without {
        None => "does not name the library".into(),
        Some(_) => format!("the library {}removed", place.would_be()),
    };
    match without.filter(|_| !place.dry_run) {
        None => {}
        Some(rest) if rest.trim().is_empty() => {
            fs::remove_file(&path).map_err(file::failed("remove", &path))?;
        }
        Some(rest) => file::change(&path, preload.text(), &rest, || Ok(()))?,
    }
    done.push(change(file, text));
    match only {
        Some(_) => Ok(()),
        None => remove_library(place, done),
    }
}

fn remove_library(place: &Place, done: &mut Vec<Change>) -> Result<(), Failure> {
    let inside = place.library();
    let library = place.outside(&inside);
    let is_own = |own: PathBuf| fs::canonicalize(own).ok() == fs::canonicalize(&library).ok();
    if !library.exists() || library::own().is_ok_and(is_own) {
        return Ok(());
    }
    let (users, silent) = match place.is_here() {
        true => trial::users(&library)?,
        false => Default::default(),
    };
    if !silent.is_empty() {
        return Err(Failure::new(format_args!(
            "{} stays: processes may use this file, but their memory maps cannot be read in time \
             ({}); end these processes and run `gpulimit uninstall` again",
            inside.display(),
            output::some(&silent)
        )));
    }
    if !users.is_empty() {
        let text = format!(
            "stays: processes use this file ({}); run `gpulimit uninstall` again when they have \
             ended",
            output::some(&users)
        );
        done.push(change(&inside, text));
        return Ok(());
    }
    place.check(&inside)?;
    if !place.dry_run {
        fs::remove_file(&library).map_err(file::failed("remove", &library))?;
        // The directory stays if it has other files.
        let _ = library.parent().map(fs::remove_dir);
    }
    let text = format!("{}removed", place.would_be());
    done.push(change(&inside, text));
    Ok(())
}
