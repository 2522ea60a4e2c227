//! The foundation of all other gpulimit crates: sizes, names, identities, file systems, mapped
//! pages and signals. This crate knows neither groups nor CUDA.

pub mod device;
pub mod escaped;
pub mod file_system;
pub mod held_signals;
pub mod identity;
pub mod interrupted;
pub mod missing;
pub mod name;
pub mod obstacle;
pub mod order;
pub mod pages;
pub mod patience;
pub mod proc;
pub mod process;
pub mod replace;
pub mod text_file;
pub mod units;
pub mod version;
