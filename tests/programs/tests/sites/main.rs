//! gpulimit where others start the programs, and on systems of other ages: batch systems, old C libraries. See tests/README.md.

mod slurm;
mod userlands;
