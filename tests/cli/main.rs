//! The controller's commands, exit statuses, errors and signals, without a GPU or a driver.
//!
//! The test process itself is the member whose figures are shown.

mod create;
mod doctor;
mod events;
mod foreign;
mod gc;
mod get;
mod help;
mod history;
mod job;
mod kill;
mod machines;
mod mine;
mod names;
mod opened;
mod past;
mod place;
mod ps;
mod report;
mod rm;
mod roots;
mod run;
mod set;
mod show;
mod show_names;
mod show_tree;
mod signals;
mod terminal;
mod top;
mod unusable;
mod user;
mod watch;
