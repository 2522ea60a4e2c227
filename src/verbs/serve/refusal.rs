//! Why a request is refused or cannot be answered.

use crate::words::failure::Failure;
use hyper::StatusCode;

/// The status of an answer without data, and the reason.
#[derive(Debug, Eq, PartialEq)]
pub struct Refusal(pub StatusCode, pub String);

impl Refusal {
    pub fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self(status, why.into())
    }

    /// Returns the refusal of a wrong request.
    pub fn wrong(why: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }

    /// Returns the refusal of a request that the server can answer later.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::unavailable(failure.to_string())
    }
}
