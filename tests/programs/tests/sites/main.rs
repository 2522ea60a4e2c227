//! gpulimit where others start the programs: batch systems. See tests/README.md.

mod slurm;
