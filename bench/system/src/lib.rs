//! What the tests of the whole system stand on.
