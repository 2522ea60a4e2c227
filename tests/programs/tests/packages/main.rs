//! The packages of scripts/package as users meet them: installed, used on the simulated driver,
//! upgraded while programs run with the old library, and removed.

mod built;
mod contents;
mod deb;
mod life;
mod mixed;
mod release;
mod rpm;
mod system;
mod tarball;
mod wheel;
