//! Programs that use a GPU, and the machines, groups and judges that the tests of the preloaded
//! library share.

#[path = "../../groups/executable.rs"]
pub mod executable;
pub mod world;
