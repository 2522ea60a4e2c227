//! gpulimit where others start the programs: batch systems, container engines. See tests/README.md.

mod containers;
mod engine;
mod slurm;
