//! Many requests in one frame: packed where both ends have agreed on it, each request with a number, an order and an
//! answer of its own whatever becomes of the frame. Frames are carried by hand.

mod session_common;

mod session_multi {
    pub mod lot;

    mod acks;
    mod agreement;
    mod burst;
    mod loss;
    mod mix;
    mod refusal;
    mod room;
}
