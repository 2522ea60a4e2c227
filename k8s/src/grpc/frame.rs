//! Messages on the wire: a flag for compression, the length, the bytes.

use super::status::{Code, Status};
use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;

/// As long as messages may be that we read: what other implementations of gRPC take, too.
const LONGEST: usize = 4 << 20;
/// The flag and the length.
const HEAD: usize = 5;

/// A message in its frame.
pub fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD + message.len());
    // Not compressed. Messages of ours are far below 4 GiB.
    out.extend_from_slice(&[0]);
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(message);
    out.freeze()
}

/// The messages that somebody sends us, one after the other.
pub struct Reader {
    body: RecvStream,
    buffer: BytesMut,
}

impl Reader {
    /// Of this stream.
    pub fn new(body: RecvStream) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
        }
    }

    /// The next message; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match self.body.data().await {
                Some(part) => {
                    let part = part.map_err(|error| Status::new(Code::Unavailable, error))?;
                    // Room for as much again.
                    let _ = self.body.flow_control().release_capacity(part.len());
                    self.buffer.extend_from_slice(&part);
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::new(Code::Internal, "a message is cut short")),
            }
        }
    }

    /// The status that a server ends with.
    pub async fn end(&mut self) -> Status {
        match self.body.trailers().await {
            Ok(Some(trailers)) => Status::of(&trailers),
            Ok(None) => Status::new(Code::Unknown, "no status at the end"),
            Err(error) => Status::new(Code::Unavailable, error),
        }
    }

    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        let Some((&[flag, a, b, c, d], _)) = self.buffer.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        if flag != 0 {
            let what = "compressed messages are not understood";
            return Err(Status::new(Code::Unimplemented, what));
        }
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > LONGEST {
            let what = format!("a message of {length} bytes, where {LONGEST} are allowed");
            return Err(Status::new(Code::ResourceExhausted, what));
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}
