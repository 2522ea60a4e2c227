//! The bodies of answers.

use super::exposition::Text;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::Receiver;

/// The body of an answer.
pub enum Content {
    Whole(Option<Bytes>),
    /// Metrics, made while the client reads.
    Metrics(Text),
    /// Server-sent events, until the other end of the queue is dropped.
    Events(Receiver<Bytes>),
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Whole(Some(text.into()))
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => bytes.take(),
            Self::Metrics(text) => match text.piece() {
                Ok(piece) => (!piece.is_empty()).then(|| Bytes::from(piece)),
                // The connection is closed in the middle of the answer, so that the client notices.
                Err(dropped) => return Poll::Ready(Some(Err(dropped))),
            },
            Self::Events(queue) => match queue.poll_recv(context) {
                Poll::Ready(bytes) => bytes,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            _ => SizeHint::default(),
        }
    }
}
