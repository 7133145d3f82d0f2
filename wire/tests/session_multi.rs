//! Many requests in one frame: packed if both ends have agreed on that; each request has a number, an order and an
//! answer of its own, whatever happens to the frame. Frames are carried by hand.

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
