//! The begin and the end of captures of streams into graphs. Programs that give memory back when
//! they are asked must not do so during a capture (`gpulimit_captures`).

use gpulimit_base::obstacle::Obstacle;

use super::handles;
use super::stream;
use crate::abi::{Context, Graph, Out, SUCCESS, Status, Stream};
use crate::driver::Real;
use crate::handler::Call;

/// `cuStreamBeginCapture`, `cuStreamBeginCapture_v2`, `cuStreamBeginCaptureToGraph`,
/// `cuStreamBeginRecaptureToGraph`: Charges nothing. Counts the capture.
pub fn begin(call: Call, real: &dyn Real, stream: Stream) -> Status {
    let context = handles::current_origin().context;
    let number = stream::number(call.symbol, stream, context);
    let possible = call.process.expect_obstacle(Obstacle::Capture);
    let captures = &call.process.captures;
    captures.begin(number, context);
    let status = real.call();
    // If another thread has removed the capture meanwhile, its obstacle has ended already.
    if status == SUCCESS || !captures.undo(number, context) {
        possible.stay();
    }
    status
}

/// Counts the captures of streams of a destroyed context no more.
pub fn forget_context(call: Call, context: Context) {
    let gone = call.process.captures.forget_context(context);
    call.process.end_obstacle(Obstacle::Capture, gone as u64);
}

/// `cuStreamEndCapture`: Charges nothing. Counts the capture no more, and remembers the graph's
/// handle, so that later hooks can ask the driver about the graph.
pub fn end(call: Call, real: &dyn Real, stream: Stream, graph: Out<Graph>) -> Status {
    let status = handles::make_graph(call, real, graph);
    let context = handles::current_origin().context;
    let number = stream::number(call.symbol, stream, context);
    let captures = &call.process.captures;
    // A call that fails ends the capture, except in another thread than the one that began it. The
    // driver knows the stream, because it has begun a capture of it.
    if captures.has(number) && (status == SUCCESS || !stream::is_capturing(call.symbol, stream)) {
        let ended = captures.end(number) as u64;
        call.process.end_obstacle(Obstacle::Capture, ended);
    }
    status
}
