//! Many requests in one frame, if both ends have agreed on that. Each request has its own number, order and
//! answer, whatever happens to the frame. The tests carry frames by hand.

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
