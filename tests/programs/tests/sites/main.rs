//! gpulimit where others start the programs, and on systems of other ages: batch systems, container
//! engines, old C libraries. See tests/README.md.

mod containers;
mod engine;
mod slurm;
mod userlands;
