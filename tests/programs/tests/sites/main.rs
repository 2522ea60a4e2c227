//! gpulimit where other software starts the programs, and on systems of other ages: batch systems,
//! container engines, old C libraries, Prometheus. See tests/README.md.

mod containers;
mod engine;
mod prometheus;
mod slurm;
mod userlands;
