//! Programs that use a GPU, and the machines, groups and judges that the tests of the preloaded
//! library share.

pub use gpulimit_support::executable;
pub mod world;
